"""A trained run, exported by the command: its loss, its texts, its training and its plain weights elsewhere."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from forked import run_processes
from safetensors.torch import load_file
from support import FACTS, WORKLOADS, tiny_run

import comera_dist
from comera_dist.commands.export import main
from comera_dist.config.reader import read_config
from comera_dist.data.shards import Corpus
from comera_dist.data.windows import ValidationWindows
from comera_dist.errors import CheckpointError, ConfigError
from comera_dist.exchange.export import export
from comera_dist.exchange.tensors import write_tensors
from comera_dist.formats.convert import densify
from comera_dist.generate.sampling import Sampling
from comera_dist.generate.writer import open_writer
from comera_dist.models.family import build_model, plan_model
from comera_dist.run.evaluate import evaluate_run
from comera_dist.runtime.processes import alone

transformers = pytest.importorskip("transformers", reason="transformers reads what is exported")
TOKENS = 24


@pytest.fixture(scope="module")
def run(text_corpus, tmp_path_factory):
    """A tied low-rank decoder of block trains, as the quickstart has, after some steps at a high rate."""
    folder = tmp_path_factory.mktemp("runs")
    formats = "model.format={attention: block_train, mlp: bottleneck, embedding: low_rank, head: low_rank}"
    overrides = [formats, "model.tie_embeddings=true", "train.steps=20", "optim.lr=0.02", "schedule.warmup_steps=2"]
    overrides += ["checkpoint.every=10", "checkpoint.keep=2"]
    runs = [tiny_run(text_corpus, folder, "mixed", *overrides)]
    runs += [tiny_run(text_corpus, folder, "dense", *overrides, "model.format=low_rank")]
    assert run_processes(1, "train_runs", runs=runs) == [[0, 0]]
    return folder


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """The run `dense`, exported."""
    output = tmp_path_factory.mktemp("out") / "deep/exported"
    export(run / "dense", output)
    return output


@pytest.fixture
def loaded(folder):
    auto = transformers.AutoModelForCausalLM, transformers.AutoTokenizer
    return tuple(kind.from_pretrained(folder) for kind in auto)


def validation_rows(corpus):
    windows = ValidationWindows(Corpus(corpus).split("valid"), 16)
    rows = torch.arange(len(windows)).numpy()
    return windows.batch(rows, rows)


def test_the_loss_on_validation_text_is_that_of_evaluate(run, loaded, text_corpus):
    model, _ = loaded
    figures = evaluate_run(run / "dense", alone(), None, None, "valid", None)
    inputs, targets = validation_rows(text_corpus)
    with torch.no_grad():
        logits = model(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(figures["loss"], abs=1e-4)
    assert loss.item() < 4  # of ln 330 = 5.8 before training: the texts can be told from others


@pytest.mark.parametrize("prompt", ["", "def function_7", "    return 3 * \u00e9"])
def test_greedy_texts_are_those_of_generate(run, loaded, prompt):
    model, tokenizer = loaded
    ours = list(next(open_writer(run / "dense").samples(prompt, TOKENS, Sampling(temperature=0), seed=0)))
    inputs = tokenizer(prompt, return_tensors="pt")
    found = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)[0, inputs.input_ids.shape[1] :]
    assert found.tolist() == ours


def test_a_few_steps_of_fine_tuning_lower_the_loss(loaded):
    model, tokenizer = loaded
    batch = tokenizer(["class Other:", "class Another: pass"], padding=True, return_tensors="pt")
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(5):
        loss = model(**batch, labels=labels).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 0.5


def test_the_command_exports_an_older_checkpoint_with_its_factors(run, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out"
    words = ["export.py", "--run", str(run / "mixed"), "--output", str(output), "--keep-factors", "--step", "10"]
    monkeypatch.setattr("sys.argv", [*words, "--json"])
    assert main() == 0
    told = json.loads(capsys.readouterr().out)
    size = sum(file.stat().st_size for file in output.iterdir())
    assert told == {"folder": str(output), "step": 10, "architecture": "ComeraLlamaForCausalLM", "bytes": size}
    model = transformers.AutoModelForCausalLM.from_pretrained(output, trust_remote_code=True)
    ours, tokens = comera_dist.load(run / "mixed", step=10).model, torch.arange(3, 15)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, ours(tokens), rtol=1e-5, atol=1e-5)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in ours.parameters())


def test_tensors_are_dense_weights_with_our_names(run, tmp_path, monkeypatch, capsys):
    words = ["export.py", "--run", str(run / "mixed"), "--output", str(tmp_path / "out"), "--to", "tensors"]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out'}: weights of step 20, 0.")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"model.safetensors", "config.json"}
    assert len({file.stat().st_mode for file in (tmp_path / "out").iterdir()}) == 1
    described, model = json.loads((tmp_path / "out/config.json").read_text()), comera_dist.load(run / "mixed").model
    assert described["model"]["d_model"] == 16
    assert {layer["format"] for layer in described["layers"].values()} == {"bottleneck"}
    weights = load_file(tmp_path / "out/model.safetensors")
    for block in model.model.layers:
        block.self_attn = densify(block.self_attn)
    model.model.embed_tokens = densify(model.model.embed_tokens)
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_kind_of_model_has_tensors(kind, tmp_path):
    config = read_config(None, WORKLOADS[kind])
    plan = plan_model(config, FACTS)
    model = build_model(config.model, plan, torch.Generator())
    twin = densify(copy.deepcopy(model))
    write_tensors(SimpleNamespace(model=model, config=config), tmp_path)
    twin.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert any(layer.tag != "dense" for layer in plan.values())
    assert json.loads((tmp_path / "config.json").read_text())["layers"] == {}


def test_mistakes_are_sentences_and_leave_nothing(run, tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match=r"exists; remove it, or name another folder"):
        export(run / "dense", tmp_path)
    with pytest.raises(ConfigError, match=r"--keep-factors needs code .*; give it with --to hf"):
        export(run / "dense", tmp_path / "out", "tensors", keep_factors=True)
    with pytest.raises(ConfigError, match=r"--to gguf is not known; give one of hf, tensors"):
        export(run / "dense", tmp_path / "out", "gguf")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"out cannot be written \(.*\); name a folder on another disk"):
        export(run / "dense", tmp_path / "file/out")
    monkeypatch.setattr("sys.argv", ["export.py", "--run", str(tmp_path), "--output", str(tmp_path / "out")])
    assert main() == 2
    assert "has no config.yaml; name the directory of a run" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_disk_that_is_full_half_way_is_a_sentence(run, tmp_path, monkeypatch, name):
    monkeypatch.setattr(
        "comera_dist.exchange.hugging_face.save_torch_state_dict",
        lambda weights, folder, **_: (folder / name).symlink_to("/dev/full"),
    )
    with pytest.raises(CheckpointError, match=r"out cannot be written \(No space left on device"):
        export(run / "dense", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_large_models_are_divided_into_files(run, folder, tmp_path, monkeypatch):
    from functools import partial

    from comera_dist.exchange import hugging_face

    small = partial(hugging_face.save_torch_state_dict, max_shard_size="20KB")
    monkeypatch.setattr(hugging_face, "save_torch_state_dict", small)
    export(run / "dense", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    models = [transformers.AutoModelForCausalLM.from_pretrained(path) for path in (folder, tmp_path / "out")]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
