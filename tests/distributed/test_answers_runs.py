"""A pretrained model is trained on prompts and answers, and then answers prompts that it has not seen."""

import itertools
import json
import random
from pathlib import Path

import pytest
import torch
from forked import run_processes
from support import TINY, cut_back, losses, metrics, saved_tensors

from comera_dist.commands.generate import main as generate
from comera_dist.config.reader import read_config
from comera_dist.data.answers import AnswerCorpus
from comera_dist.data.batches import TrainBatches
from comera_dist.data.prompt_form import PromptForm
from comera_dist.data.tasks import open_task
from comera_dist.errors import ConfigError
from comera_dist.exchange.chat_template import chat_template
from comera_dist.exchange.export import export
from comera_dist.generate.sampling import Sampling
from comera_dist.generate.writer import open_writer, text_pieces
from comera_dist.runtime.forward import count_targets
from data_prep import prepare_answers, tokenize_corpus
from data_prep.text.tokenizer import train_model

pytestmark = pytest.mark.distributed
WORDS = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=3)]
MODEL = ["model.d_model=64", "model.heads=4", "model.d_ff=128", "model.format=dense", "optim.lr=0.003"]
ROW = ["data.documents=separate", "data.seq_len=32", "train.batch_tokens=1024", "train.micro_batch=8"]
FINE = ["train.steps=120", "checkpoint.every=60", "checkpoint.keep=9", "eval.every=60"]


def write_data(folder: Path) -> None:
    """Text of words, and words as prompts whose answers are the reversed words."""
    random.Random(0).shuffle(words := list(WORDS))
    (folder / "words.txt").write_text("\n<|endoftext|>\n".join(f"{word} {word}" for word in words))
    rows = [{"prompt": word, "response": word[::-1]} for word in words]
    (folder / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # So few entries that each letter is a token.
    (folder / "tokenizer.model").write_bytes(train_model(iter([f"{word} {word}\n" for word in words]), 287))
    shared = ["--tokenizer", f"{folder}/tokenizer.model", "--valid-fraction", "0.1"]
    text, answers = ["--source", f"files:{folder}/words.txt"], ["--source", f"files:{folder}/words.jsonl"]
    tokenize_corpus.tokenize([*text, *shared, "--output", f"{folder}/text", "--workers", "1"])
    prepare_answers.prepare([*answers, *shared, "--output", f"{folder}/answers", "--template", "{prompt}>{response}"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A short run on text, and from it a run on answers: on two processes and on one."""
    folder = tmp_path_factory.mktemp("answers")
    write_data(folder)
    run_processes(2, "train_runs", runs=[run(folder, "text", "train.steps=10", data="text"), run(folder, "two")])
    run_processes(1, "train_runs", runs=[run(folder, "one", "train.zero_stage=0", "train.micro_batch=32")])
    return folder


def run(folder, name, *overrides, data="answers"):
    start = [f"run.start_from={folder}/text", *FINE] if data == "answers" else []
    place = [f"run.directory={folder}", f"run.name={name}", f"data.corpus={folder}/{data}"]
    return [*TINY, *MODEL, *place, *ROW, *start, *overrides]


def held_out(folder):
    """(prompt, answer) of the split valid."""
    corpus, writer = AnswerCorpus(folder / "answers"), open_writer(folder / "two")
    tokens, found, start = corpus.split("valid")["tokens"].tolist(), [], 0
    for prompt_end, answer_end in zip(*corpus.ends("valid"), strict=True):
        prompt, answer = tokens[start:prompt_end], tokens[prompt_end:answer_end]
        found.append((writer.tokenizer.decode(prompt).removesuffix(">"), writer.tokenizer.decode(answer)))
        start = answer_end
    return found


def test_it_answers_prompts_that_it_has_not_seen(trained):
    writer, right = open_writer(trained / "two"), 0
    for prompt, answer in (pairs := held_out(trained)):
        assert answer == prompt[::-1]
        ids = list(next(writer.samples(asked := writer.asked(prompt), 9, Sampling(temperature=0), seed=0)))
        right += "".join(text_pieces(writer.tokenizer, ids, asked)) == answer and ids[-1] == writer.tokenizer.eos_id
    assert len(pairs) > 30
    assert right >= 0.9 * len(pairs)


def test_the_command_prints_the_answer_alone(trained, monkeypatch, capsys):
    monkeypatch.setattr("comera_dist.runtime.processes.leave", lambda processes, status: None)
    arguments = ["--run", str(trained / "two"), "--ask", "abc", "--temperature", "0"]
    monkeypatch.setattr("sys.argv", ["generate.py", *arguments])
    generate()
    assert capsys.readouterr().out == "cba\n"


def test_a_model_of_text_has_no_form_for_a_question(trained):
    with pytest.raises(ConfigError, match="trained on texts without prompts and answers"):
        open_writer(trained / "text").asked("abc")


def test_its_form_is_exported(trained):
    export(trained / "two", trained / "exported")
    settings = json.loads((trained / "exported/tokenizer_config.json").read_text())
    assert settings["chat_template"] == chat_template(PromptForm("{prompt}>{response}"))


def test_processes_and_micro_batches_change_nothing(trained):
    assert losses(trained, "two")[:8] == pytest.approx(losses(trained, "one")[:8], rel=1e-5)


def test_logs_count_targets_truly(trained):
    config = read_config(None, run(trained, "one"))
    size = config.global_batch
    batches = TrainBatches(open_task(config).train(), "", 1, size, size, 0, 1, config.run.seed)
    expected = [sum(map(count_targets, batches.step(step * size))) for step in range(120)]
    for name in ("one", "two"):
        assert [record["targets"] for record in metrics(trained, name)] == expected
    assert max(expected) < config.step_tokens


def test_a_resume_is_bit_for_bit(trained):
    again = cut_back(trained, "two", "again", 60)
    assert run_processes(2, "train_runs", runs=[run(trained, again)]) == [[0]] * 2
    expected, found = (saved_tensors(trained, name, 120) for name in ("two", "again"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_answers_mix_with_text(trained):
    mixture = f"data.mixture=[{{corpus: {trained}/text, weight: 1}}, {{corpus: {trained}/answers, weight: 3}}]"
    options = [one for one in run(trained, "mixed", mixture, "train.steps=2", "eval.every=1") if "corpus=" not in one]
    assert run_processes(1, "train_runs", runs=[options]) == [[0]]
    assert {"val_loss/text", "val_loss/answers", "val_bits_per_byte"} <= metrics(trained, "mixed")[-1].keys()
    assert open_writer(trained / "mixed").asked("abc") == "abc>"
