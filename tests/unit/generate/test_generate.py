"""Sampling against a slow oracle, text as it comes, and the command on a tiny run."""

import copy
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from forked import run_processes
from support import ROOT, environment, tiny_run
from text_corpus import VOCAB

from comera_dist.commands.generate import LARGEST_SEED, _print_as_it_comes, main
from comera_dist.config.data_section import MixedCorpus
from comera_dist.config.reader import read_config
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, ConfigError, DataError, TrainingError
from comera_dist.generate.sampling import Sampling
from comera_dist.generate.writer import open_writer, text_pieces, writer_of
from comera_dist.run.trained import load_trained


def logits(seed, size=40):
    """Random logits with ties."""
    return 2 * torch.randn(size, generator=torch.Generator().manual_seed(seed)).round(decimals=0)


def slow_probabilities(logits_V, temperature, top_k, top_p):
    weight = {token: float(torch.exp(value / temperature)) for token, value in enumerate(logits_V.double())}
    kept = sorted(weight, key=lambda token: -weight[token])[:top_k]
    total, reached, nucleus = sum(weight[token] for token in kept), 0.0, []
    for token in kept:
        if top_p is None or reached < top_p:
            nucleus.append(token)
        reached += weight[token] / total
    total = sum(weight[token] for token in nucleus)
    return [weight[token] / total if token in nucleus else 0.0 for token in range(len(logits_V))]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [None, 1, 7, 100])
@pytest.mark.parametrize("top_p", [None, 0.05, 0.63, 1.0])
def test_probabilities_are_those_of_the_oracle(temperature, top_k, top_p):
    for seed in range(3):
        found = Sampling(temperature, top_k, top_p).probabilities(logits(seed))
        assert found.tolist() == pytest.approx(slow_probabilities(logits(seed), temperature, top_k, top_p), abs=1e-12)


def test_draws_are_as_frequent_as_they_are_probable():
    sampling, generator = Sampling(0.8, top_k=4, top_p=0.9), torch.Generator().manual_seed(0)
    expected = sampling.probabilities(logits(1))
    counts = torch.zeros(40, dtype=torch.float64)
    for _ in range(3000):
        counts[sampling.draw(logits(1), generator)] += 1
    assert (counts[expected == 0] == 0).all()
    torch.testing.assert_close(counts / 3000, expected, rtol=0, atol=0.04)


@pytest.mark.parametrize("temperature", [1e-320, 1e-30])
def test_next_to_temperature_zero_the_most_probable_tokens_are_left(temperature):
    found = Sampling(temperature, top_k=10**30).probabilities(logits(1))
    assert found.sum() == pytest.approx(1)
    assert (found > 0).tolist() == (logits(1) == logits(1).max()).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_has_diverged_writes_nothing(temperature):
    with pytest.raises(TrainingError, match="logits are not finite, so it writes nothing; name another --step"):
        Sampling(temperature).draw(logits(1).index_fill(0, torch.tensor([3]), torch.nan), torch.Generator())


def test_temperature_zero_is_greedy():
    values = logits(4)
    values[17] = 99.0
    assert Sampling(0.0, top_k=3, top_p=0.5).draw(values, torch.Generator()) == 17


@pytest.mark.parametrize(
    "settings",
    [{"temperature": -0.1}, {"temperature": float("nan")}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.2}],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(ConfigError, match=f"--{next(iter(settings)).replace('_', '-')} .*; give"):
        Sampling(**settings)


@pytest.fixture(scope="module")
def run(text_corpus, tmp_path_factory):
    """A decoder that has made two steps on text."""
    folder = tmp_path_factory.mktemp("generate")
    overrides = tiny_run(text_corpus, folder, "tiny", "train.steps=2", "eval.max_tokens=64")
    assert run_processes(1, "train_runs", runs=[overrides]) == [[0]]
    return folder / "tiny"


@pytest.fixture(scope="module")
def writer(run):
    return open_writer(run)


def command(run, *more):
    # Without DS_ACCELERATOR DeepSpeed prints which device it found, which must not go to stdout.
    named = environment(PYTHONPATH=str(ROOT))
    return subprocess.run(
        [sys.executable, "launch/generate.py", "--run", str(run), *more],
        cwd=ROOT,
        env={key: value for key, value in named.items() if key != "DS_ACCELERATOR"},
        capture_output=True,
        text=True,
    )


def test_the_command_writes_what_is_drawn(run, writer, capsys):
    settings = ["--prompt", "def f", "--tokens", "9", "--top-k", "40", "--seed", "3", "--samples", "2", "--json"]
    done = command(run, *settings)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["run"], record["step"], record["prompt"]) == (str(run), 2, "def f")
    assert [(sample["seed"], sample["tokens"], sample["finish_reason"]) for sample in record["samples"]] == [
        (3, 9, "length"), (4, 9, "length")
    ]  # fmt: skip
    texts = [sample["text"] for sample in record["samples"]]
    again = writer.samples("def f", 9, Sampling(top_k=40), seed=3, count=2)
    _print_as_it_comes(writer, "def f", again)
    assert capsys.readouterr().out == f"def f{texts[0]}\n\n---\ndef f{texts[1]}\n"


def test_a_mistake_ends_the_command_with_a_sentence(run):
    done = command(run, "--top-p", "2")
    assert done.returncode == 2
    assert (
        done.stderr == "ConfigError: --top-p 2.0 is not a possible probability; give a number above 0 and at most 1\n"
    )


def test_the_second_sample_is_the_first_of_the_next_seed(writer):
    two = list(map(list, writer.samples("def", 12, Sampling(), seed=5, count=2)))
    one = list(next(writer.samples("def", 12, Sampling(), seed=6)))
    assert two[0] != two[1]
    assert two[1] == one


def test_a_prompt_is_the_beginning_of_a_document(writer):
    """Greedy ids equal those of an argmax loop without a cache, which begins with EOS and the prompt."""
    expected = [writer.tokenizer.eos_id, *writer.tokenizer.encode("def f\u00e9")]
    start = len(expected)
    found = list(next(writer.samples("def f\u00e9", 8, Sampling(temperature=0), seed=0)))
    with torch.no_grad():
        for _ in found:
            expected.append(int(writer.model(torch.tensor([expected]))[0, -1].argmax()))
    assert found == expected[start:]


@pytest.mark.parametrize("tokens", [10**15, 10**30])
def test_a_text_that_memory_does_not_hold_is_one_sentence(writer, tokens):
    with pytest.raises(ConfigError, match=r"do not fit in memory; lower --tokens"):
        next(writer.samples("def", tokens, Sampling(), seed=0))


def test_a_file_is_the_prompt_to_the_byte(run, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompt").write_bytes("\r\n\td\u00e9f\r".encode())
    arguments = ["--prompt-file", str(tmp_path / "prompt"), "--tokens", "1", "--json"]
    monkeypatch.setattr("sys.argv", ["generate.py", "--run", str(run), *arguments])
    monkeypatch.setattr("comera_dist.runtime.processes.leave", lambda processes, status: None)
    main()
    assert json.loads(capsys.readouterr().out)["prompt"] == "\r\n\td\u00e9f\r"


@pytest.mark.parametrize("seed", [LARGEST_SEED, -LARGEST_SEED])
def test_the_largest_seeds_write(writer, seed):
    assert list(next(writer.samples("", 2, Sampling(), seed)))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tokens", "-3"], "argument --tokens: -3 is not possible; give 1 or more"),
        (["--samples", "0"], "argument --samples: 0 is not possible; give 1 or more"),
        (["--seed", str(10**30)], "argument --seed: 1000000000000000000000000000000 is not possible; give a number"),
        (["--temperature", "nan"], "ConfigError: --temperature nan is not possible; give 0"),
        (["--prompt", "caf\udce9"], "DataError: --prompt is not UTF-8 text; name a file"),
        (["--prompt-file", "tests"], "DataError: --prompt-file tests cannot be read as UTF-8 text"),
    ],
    ids=str,
)
def test_odd_arguments_are_sentences(run, monkeypatch, capsys, arguments, sentence):
    monkeypatch.setattr("sys.argv", ["generate.py", "--run", str(run), *arguments])
    try:
        status = main()
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert sentence in capsys.readouterr().err


def test_another_corpus_in_its_place_is_refused(run):
    trained = load_trained(run)
    manifest = copy.deepcopy(trained.checkpoint.manifest)
    manifest["run"]["cursor"]["fingerprint"] = "f" * 64
    other = replace(trained, checkpoint=replace(trained.checkpoint, manifest=manifest))
    with pytest.raises(DataError, match=r"and the model was trained on ffffffffffff, .*; put that corpus back"):
        writer_of(other, run)


def test_a_run_on_a_mixture_writes_with_the_tokenizer_of_its_corpora(run):
    trained = load_trained(run)
    config, manifest = trained.config, copy.deepcopy(trained.checkpoint.manifest)
    part = MixedCorpus(corpus=config.data.corpus, weight=1.0)
    config = config.model_copy(update={"data": config.data.model_copy(update={"mixture": (part,)})})
    of_mixture = replace(trained, config=config)
    with pytest.raises(DataError, match="put that corpus back in its place"):
        writer_of(of_mixture, run)
    manifest["run"]["cursor"]["fingerprint"] = open_task(config).fingerprint
    writer = writer_of(replace(of_mixture, checkpoint=replace(trained.checkpoint, manifest=manifest)), run)
    assert writer.tokenizer.vocab_size == VOCAB


def test_another_tokenizer_in_its_place_is_refused(run, tmp_path):
    trained = load_trained(run)
    corpus = shutil.copytree(trained.config.data.corpus, tmp_path / "corpus")
    with next(corpus.glob("*.model")).open("ab") as file:
        file.write(b"\xfa\x07\x01x")  # an unknown field of protocol buffers, which readers skip
    data = trained.config.data.model_copy(update={"corpus": corpus})
    with pytest.raises(DataError, match=r"tokenizer.model is not the tokenizer that made"):
        writer_of(replace(trained, config=trained.config.model_copy(update={"data": data})), run)


def test_a_run_writes_whose_configuration_would_be_refused_now(run, tmp_path):
    """An earlier version took keys without effect and may have been less strict."""
    folder = shutil.copytree(run, tmp_path / "earlier")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("  sync_every: 100\n", "  sync_every: 7\n"))
    with pytest.raises(ConfigError, match=r"ranks.sync_every has no effect"):
        read_config(folder / "config.yaml")
    assert load_trained(folder).config.ranks.sync_every == 7


def test_a_run_without_a_checkpoint_is_refused(run, tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing has no config.yaml; name the directory of a run"):
        open_writer(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"xxx has no config.yaml; name the directory of a run"):
        open_writer(tmp_path / ("x" * 300))  # longer than a name of a file may be
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    with pytest.raises(CheckpointError, match=r"has no checkpoint; train it first"):
        open_writer(tmp_path)


def test_a_run_of_another_model_is_refused():
    dlrm = SimpleNamespace(model=torch.nn.Identity(), config=SimpleNamespace(model=SimpleNamespace(kind="dlrm")))
    with pytest.raises(ConfigError, match=r"model.kind = dlrm, which writes no text; name a run of a decoder"):
        writer_of(dlrm, "a run")


def test_pieces_of_text_are_whole_characters(writer):
    tokenizer = writer.tokenizer
    text = "  if \u00e9\U0001f600\n\tx  = \u2581 y"
    ids = tokenizer.encode(text)
    pieces = list(text_pieces(tokenizer, [*ids, tokenizer.eos_id]))
    assert "".join(pieces) == text
    assert len(pieces) > 8
    assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_character_do_not_stop_the_text(writer):
    tokenizer = writer.tokenizer
    grin = tokenizer.encode("\U0001f600")
    ids = [*tokenizer.encode("a "), *grin[:-1], *tokenizer.encode("b"), *grin[:2]]
    pieces = list(text_pieces(tokenizer, ids))
    assert "".join(pieces) == tokenizer.decode(ids)
    assert pieces[0] == "a"
