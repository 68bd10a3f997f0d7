"""Tasks of lm_eval against a plain computation token by token, and against lm_eval's own adapter of an export."""

import copy
import json
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from forked import run_processes, run_program
from lm_eval.tasks import TaskManager
from local_tasks import NAMES, document
from support import ROOT

from comera_dist.commands.evaluate import main
from comera_dist.errors import ConfigError, TrainingError
from comera_dist.exchange.export import export
from comera_dist.judge import likelihood
from comera_dist.judge.harness import DecoderLM
from comera_dist.judge.tasks import judge_on_tasks
from comera_dist.report.judgement_tables import COUNTS
from comera_dist.runtime.processes import alone


@pytest.fixture(scope="module")
def harness(writer):
    return DecoderLM(writer, "fp32", alone())


@pytest.fixture(scope="module")
def figures(judged_run, task_folder):
    return judge_on_tasks(judged_run, alone(), None, NAMES, task_folder, None)


def requests(*arguments):
    return [SimpleNamespace(args=one) for one in arguments]


@torch.no_grad()
def token_nats(model, before, token):
    """The log-probability of a token after others, and whether it is the most probable one."""
    nats_V = model(torch.tensor([before]))[0, -1].double().log_softmax(-1)
    return float(nats_V[token]), int(nats_V.argmax()) == token


PAIRS = [
    ("the cat near item_3", " is here"),
    ("the cats near item_4", " are here\n"),
    ("", "the cats"),
    ("the ", "cat"),  # the space goes to the answer
    (document(30), "the cat near"),  # longer than a sequence of training
    ("item", " q\u00e9"),
]


@pytest.mark.parametrize("logits", [likelihood.LOGITS, 1, 320 * 40])
def test_likelihoods_are_those_of_a_loop_over_tokens(trained, harness, monkeypatch, logits):
    monkeypatch.setattr(likelihood, "LOGITS", logits)
    tokenizer = harness._writer.tokenizer
    found = harness.loglikelihood(requests(*PAIRS))
    for (context, answer), (nats, is_greedy) in zip(PAIRS, found, strict=True):
        start = [tokenizer.eos_id, *tokenizer.encode(context.rstrip())]
        ids = [tokenizer.eos_id, *tokenizer.encode(context + answer)]
        assert ids[: len(start)] == start
        first = max(0, len(ids) - 1 - harness.max_length)
        slow = [token_nats(trained.model, ids[first:at], ids[at]) for at in range(len(start), len(ids))]
        assert nats == pytest.approx(sum(one for one, _ in slow), abs=1e-4)
        assert is_greedy == all(greedy for _, greedy in slow)


def test_products_in_bf16_are_nearly_the_same(writer, harness):
    exact, rough = (model.loglikelihood(requests(*PAIRS)) for model in (harness, DecoderLM(writer, "bf16", alone())))
    nats = [[one for one, _ in found] for found in (exact, rough)]
    assert nats[0] == pytest.approx(nats[1], rel=0.1)
    assert nats[0] != nats[1]


def test_some_answers_are_greedy_and_some_are_not(harness):
    context = document(31)
    answer = harness.generate_until(requests((context, {"max_gen_toks": 1, "do_sample": False})))[0]
    found = harness.loglikelihood(requests((context.rstrip(), context[-1] + answer), (context.rstrip(), " é")))
    assert [is_greedy for _, is_greedy in found] == [True, False], answer


def test_a_model_that_has_diverged_is_not_judged(trained):
    model = copy.deepcopy(trained.model)
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(TrainingError, match="a log-likelihood is not finite, because the weights have diverged"):
        likelihood.likelihoods(model, [likelihood.Ending([1, 2], 1)], 320, "fp32")


def test_sequences_come_in_batches_from_long_to_short(monkeypatch):
    monkeypatch.setattr(likelihood, "LOGITS", 100)
    assert list(likelihood.batches_by_length([3, 50, 5, 4], 5)) == [[1], [2, 3, 0]]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_rolling_likelihood_predicts_each_token_once(trained, harness, count):
    tokenizer, length = harness._writer.tokenizer, harness.max_length
    text = document(31) * count
    ids = [tokenizer.eos_id, *tokenizer.encode(text)]
    slow = 0.0
    for at in range(1, len(ids)):
        first = (at - 1) // length * length  # windows follow each other, and the last one ends with the text
        first = min(first, max(0, len(ids) - 1 - length))
        slow += token_nats(trained.model, ids[first:at], ids[at])[0]
    (found,) = harness.loglikelihood_rolling(requests((text,)))
    assert found == pytest.approx(slow, abs=1e-3)


def greedy_text(model, tokenizer, prompt_ids, tokens):
    ids = list(prompt_ids)
    with torch.no_grad():
        while len(ids) < len(prompt_ids) + tokens and (len(ids) == len(prompt_ids) or ids[-1] != tokenizer.eos_id):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return tokenizer.decode(ids[len(prompt_ids) :])


@pytest.mark.parametrize("context", ["the cat", document(9)], ids=["short", "longer than a sequence"])
@pytest.mark.parametrize("asked", [6, 256])
def test_answers_are_greedy_texts_up_to_a_stop(trained, harness, context, asked):
    tokenizer, length = harness._writer.tokenizer, harness.max_length
    tokens = min(asked, length // 2)
    prompt = [tokenizer.eos_id, *tokenizer.encode(context)][-(length - tokens) :]
    whole = greedy_text(trained.model, tokenizer, prompt, tokens)
    settings = {"max_gen_toks": asked, "do_sample": False}
    assert len(whole) > 2
    assert harness.generate_until(requests((context, settings))) == [whole]
    stop = whole[len(whole) // 2]
    assert harness.generate_until(requests((context, {**settings, "until": [stop]}))) == [whole.partition(stop)[0]]


def test_sampled_answers_differ_from_each_other_and_are_the_same_again(harness):
    settings = {"max_gen_toks": 12, "do_sample": True, "temperature": 2.0}
    first, again = (harness.generate_until(requests(("the", settings), ("the", settings))) for _ in range(2))
    assert first == again
    assert first[0] != first[1]


@pytest.fixture(scope="module")
def exported(judged_run, tmp_path_factory):
    pytest.importorskip("transformers", reason="transformers reads what is exported")
    export(judged_run, folder := tmp_path_factory.mktemp("exported") / "out")
    return str(folder)


def in_their_own_adapter(exported, task_folder, task, shots):
    """What lm_eval finds of the exported model by itself."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    # Their rolling likelihood begins with BOS and a tokenizer's own BOS, and counts the second one as a word.
    more = {"add_bos_token": False} if task == "local_prose" else {}
    model = HFLM(pretrained=exported, device="cpu", batch_size=2, **more)
    manager = TaskManager(include_path=task_folder, include_defaults=False)
    return simple_evaluate(model, tasks=[task], task_manager=manager, num_fewshot=shots, bootstrap_iters=0)


def prompts_too_long(samples, harness):
    """How many items have a prompt, with its answer, that is longer than the model reads."""

    def tokens(arguments):
        context, behind = arguments
        of_answer = 0 if isinstance(behind, str) else behind["max_gen_toks"]
        return len(harness.tok_encode(context + (behind if isinstance(behind, str) else ""))) + of_answer

    room = {"local_agreement": harness.max_length + 1, "local_writing": harness.max_length}
    return sum(any(tokens(one) > room[name] for one in item["arguments"]) for name, item in samples)


@pytest.mark.parametrize("shots", [None, 2])
def test_results_are_those_of_the_exported_model_in_lm_evals_own_adapter(
    judged_run, task_folder, figures, exported, harness, shots
):
    tasks = (figures if shots is None else judge_on_tasks(judged_run, alone(), None, NAMES, task_folder, None, shots))[
        "tasks"
    ]
    for task, metrics in tasks.items():
        theirs = in_their_own_adapter(exported, task_folder, task, shots)
        found = {name: theirs["results"][task][f"{name},none"] for name in metrics.keys() - COUNTS if "std" not in name}
        assert found == pytest.approx({name: metrics[name] for name in found}, rel=1e-4)
        assert found
        if task != "local_prose":
            assert metrics.get("shots", 0) == theirs["n-shot"][task] == (shots or 0)
            samples = [(task, item) for item in theirs["samples"][task]]
            assert metrics.get("truncated", 0) == prompts_too_long(samples, harness)
    assert "shots" not in tasks["local_prose"], "a whole text has no prompt"
    assert 0 < tasks["local_writing"]["truncated"] <= 3


def test_figures_are_those_of_the_data(figures, trained, harness):
    tasks = figures["tasks"]
    assert figures["step"] == 40
    assert {name: tasks[name]["items"] for name in NAMES} == dict(zip(NAMES, (10, 5, 3), strict=True))
    texts = [document(index) for index in range(200, 205)]
    nats = sum(harness.loglikelihood_rolling(requests(*((text,) for text in texts))))
    bits = -nats / torch.tensor(2.0).log().item() / sum(len(text.encode()) for text in texts)
    assert tasks["local_prose"]["bits_per_byte"] == pytest.approx(bits)
    assert tasks["local_agreement"]["acc_stderr"] >= 0


@pytest.mark.parametrize("shots", [0, 2])
def test_processes_share_the_items(judged_run, task_folder, figures, shots):
    known = judge_on_tasks(judged_run, alone(), None, NAMES, task_folder, None, shots)
    assert (known == figures) == (shots == 0)
    shared = run_processes(2, "judge_run", run=str(judged_run), names=NAMES, folder=str(task_folder), shots=shots)
    assert shared[1]["tasks"] == {}
    for task, metrics in known["tasks"].items():
        assert shared[0]["tasks"][task] == pytest.approx(metrics, rel=1e-5)


def test_an_error_of_one_process_ends_all(judged_run, task_folder, tmp_path):
    settings = (task_folder / "agreement.yaml").read_text()
    kept, _, _ = settings.partition("doc_to_choice")
    long_when_odd = "doc_to_choice: \"{{['is', 'here ' * 40 if answer else 'are']}}\"\ndoc_to_target: answer\n"
    (tmp_path / "odd.yaml").write_text(f"{kept}{long_when_odd}".replace("local_agreement", "odd"))
    told = run_processes(2, "judge_run", run=str(judged_run), names=["odd"], folder=str(tmp_path))
    assert told[0] == told[1]
    assert "the model was trained on sequences of 32; leave this task out" in told[0]


def test_the_command_prints_a_table_or_json(judged_run, task_folder, figures, tmp_path):
    words = ["launch/evaluate.py", "--run", str(judged_run), "--tasks", ",".join(NAMES), "--tasks-from"]
    table = run_program([*words, str(task_folder)], ROOT, HF_HOME=str(tmp_path))
    assert table.status == 0, table.err
    assert "local_agreement" in table.out
    assert "± " in table.out
    more = ["--max-items", "2", "--shots", "1", "--json"]
    few = run_program([*words, str(task_folder), *more], ROOT, HF_HOME=str(tmp_path))
    tasks = json.loads(few.out)["tasks"]
    assert [(tasks[name]["items"], tasks[name].get("shots")) for name in NAMES] == [(2, 1), (2, None), (2, 1)]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["local_agreement", "nothing"], r"lm_eval knows no task 'nothing'; `lm-eval ls tasks`"),
        (["lost"], r"the tasks lost cannot be loaded \(FileNotFoundError: .*\); mend their files"),
        (
            ["template"],
            r"cannot carry out the tasks template \(UndefinedError: 'nothing' is undefined\); mend their YAML",
        ),
        (["long"], r"the answer ' here here .*\.\.\. has \d+ tokens, and the model was trained on sequences of 32"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_mistakes_are_sentences(judged_run, task_folder, tmp_path, names, told, monkeypatch):
    # lm_eval's own list takes many seconds to read.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    settings = (task_folder / "agreement.yaml").read_text()
    wrong = {
        "lost": settings.replace("agreement.jsonl", "nothing.jsonl"),
        "template": settings.replace("{{noun}}", "{{nothing.noun if answer else noun}}"),
        "long": settings.replace("is here", "here " * 40),
        "local_agreement": settings,
    }
    for name, text in wrong.items():
        (tmp_path / f"{name}.yaml").write_text(text.replace("local_agreement", name))
    with pytest.raises(ConfigError, match=told):
        judge_on_tasks(judged_run, alone(), None, names, tmp_path, None)


def test_an_answer_without_tokens_of_its_own_is_a_sentence(harness):
    with pytest.raises(
        ConfigError, match=r"joins the answer 't' to the end of the text before it, so it has no tokens"
    ):
        harness.loglikelihood(requests(("the ca", "t")))


def test_a_missing_folder_or_package_is_a_sentence(judged_run, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"--tasks-from .*nothing is not a folder; name one with YAML files"):
        judge_on_tasks(judged_run, alone(), None, NAMES, tmp_path / "nothing", None)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    with pytest.raises(ConfigError, match=r"needs the package lm_eval, which is not installed; run `pip install"):
        judge_on_tasks(judged_run, alone(), None, NAMES, None, None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--tasks", "a", "--split", "train"], "--split does not go with --tasks"),
        (["--max-items", "3"], "--max-items goes only with --tasks"),
        (["--text", "a", "--max-items", "3"], "--max-items does not go with --text"),
        (["--shots", "3"], "--shots goes only with --tasks"),
        (["--tasks", "a", "--shots", "-1"], "-1 is not possible; give 0 or more"),
        (["--stride", "3"], "--stride goes only with --text"),
        (["--tasks", "a,,b"], "'a,,b' names no task; give names with commas between them"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(monkeypatch, capsys, words, told):
    monkeypatch.setattr("sys.argv", ["evaluate.py", "--run", "runs/x", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert told in capsys.readouterr().err
