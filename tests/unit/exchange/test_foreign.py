"""A model of transformers becomes a run of ours: the same logits, and a sentence for what does not fit."""

import json
import shutil

import pytest
import torch
from forked import run_processes
from support import ROOT, mixture_of, tiny_run
from tokenizer_kinds import KINDS

from comera_dist.commands.import_hf import main
from comera_dist.data.shards import Corpus
from comera_dist.errors import CheckpointError, ComeraError, ConfigError, DataError, RunDirectoryError
from comera_dist.exchange.export import export
from comera_dist.exchange.foreign import import_model
from comera_dist.run.trained import load_trained
from data_prep import tokenize_corpus

transformers = pytest.importorskip("transformers", reason="it makes the models that are imported")
KEYS = ["data.seq_len=16", "train.steps=1"]
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Text in the ids of a tokenizer.json."""
    folder = tmp_path_factory.mktemp("foreign")
    KINDS["byte level"]().save(str(folder / "tokenizer.json"))
    texts = [f"for item_{i} in range({i}): total += {i}" for i in range(300)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = ["--source", f"files:{folder}/a.jsonl", "--tokenizer", f"{folder}/tokenizer.json", "--workers", "1"]
    tokenize_corpus.tokenize([*arguments, "--valid-fraction", "0.2", "--output", str(folder / "corpus")])
    return folder / "corpus"


def saved(corpus, folder, rows_more=0, shard_size="5GB", **settings):
    """A random LLaMA with the tokenizer of the corpus, as transformers saves it."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=Corpus(corpus).vocab_size + rows_more, **SIZES, **settings)
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder, max_shard_size=shard_size)
    shutil.copy(corpus / "tokenizer.json", folder)
    return model


def imported(corpus, folder, output, **options):
    return import_model(folder, output, None, [*KEYS, f"data.corpus={corpus}"], max_tokens=500, **options)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": True, "rms_norm_eps": 1e-4},
        {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"rows_more": 7, "shard_size": "20KB"},
    ],
    ids=["plain", "tied", "grouped heads", "more rows, several files"],
)
def test_logits_and_loss_are_those_of_transformers(corpus, tmp_path, settings):
    theirs = saved(corpus, tmp_path / "hf", **settings)
    found = imported(corpus, tmp_path / "hf", tmp_path / "run")
    ours, size = load_trained(tmp_path / "run").model, Corpus(corpus).vocab_size
    tokens = torch.randint(size, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits[..., :size], rtol=1e-5, atol=1e-5)
    assert found["before"]["params"] == sum(parameter.numel() for parameter in ours.parameters())
    assert "after" not in found


def test_rules_and_parts_of_the_configuration_shape_nothing_of_a_dense_model(corpus, tmp_path):
    theirs = saved(corpus, tmp_path / "hf")
    parts = "model: {gated_attention: true, bigram_rows: 50}"  # that the imported model lacks
    (tmp_path / "rule.yaml").write_text("tensor: {layers: [{match: '*q_proj', format: block_train}]}\n" + parts)
    keys = [*KEYS, f"data.corpus={corpus}"]
    import_model(tmp_path / "hf", tmp_path / "run", tmp_path / "rule.yaml", keys, max_tokens=500)
    trained = load_trained(tmp_path / "run")
    assert sum(p.numel() for p in trained.model.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert trained.config.tensor.layers == ()


@pytest.mark.parametrize("override", ["model.norm_eps=0.5", "model.gated_attention=true"])
def test_an_override_that_the_model_decides_is_refused(corpus, tmp_path, override):
    saved(corpus, tmp_path / "hf")
    overrides = [*KEYS, f"data.corpus={corpus}", override]
    with pytest.raises(ConfigError, match=f"{override} was given, but the model in .* decides that key"):
        import_model(tmp_path / "hf", tmp_path / "run", None, overrides)


@pytest.mark.parametrize("options", [{}, {"params": 33000, "tokens": 500}])
def test_an_output_that_cannot_be_written_is_one_sentence(corpus, tmp_path, options):
    saved(corpus, tmp_path / "hf")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="file/run cannot be written"):
        imported(corpus, tmp_path / "hf", tmp_path / "file/run", **options)


def test_what_was_exported_comes_back(text_corpus, tmp_path):
    run = tiny_run(text_corpus, tmp_path, "own", "model.format=low_rank", "model.tie_embeddings=true")
    assert run_processes(1, "train_runs", runs=[run]) == [[0]]
    export(tmp_path / "own", tmp_path / "hf")
    imported(text_corpus, tmp_path / "hf", tmp_path / "back")
    own, back = (load_trained(tmp_path / name).model for name in ("own", "back"))
    tokens = torch.arange(48).view(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(back(tokens), own(tokens), rtol=1e-5, atol=1e-5)


def test_it_is_compressed_and_trained_further(corpus, tmp_path):
    saved(corpus, tmp_path / "hf")
    dense = imported(corpus, tmp_path / "hf", tmp_path / "dense")
    params = dense["before"]["params"] - 4000
    small = imported(corpus, tmp_path / "hf", tmp_path / "small", params=params, tokens=2000)
    assert small["before"] == dense["before"]
    assert params * 0.98 < small["after"]["params"] <= params
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense", "hf", "small"]
    config = ["model.d_model=32", "model.layers=2", "model.d_ff=48", "model.heads=4", "model.norm_eps=1e-6"]
    config += ["model.format=low_rank", "data.seq_len=16"]
    overrides = [*config, "optim.lr=0.01", f"run.start_from={tmp_path}/small", "train.steps=20"]
    assert run_processes(1, "train_runs", runs=[tiny_run(corpus, tmp_path, "next", *overrides)]) == [[0]]
    summary = json.loads((tmp_path / "next/summary.json").read_text())
    assert summary["params"] == small["after"]["params"]
    assert summary["val_loss"] < small["after"]["loss"]


def edit(folder, **changes):
    settings = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in (settings | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"model_type": "gpt2"}, ConfigError, "has model_type = gpt2, which no kind of model here computes"),
        ({"attention_bias": True}, ConfigError, "attention_bias = True, and our decoder has False"),
        ({"hidden_act": "gelu"}, ConfigError, "hidden_act = gelu, and our decoder has silu"),
        ({"head_dim": 16}, ConfigError, "head_dim = 16, and our decoder has 8"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, ConfigError, "rope_type = yarn"),
        ({"rope_parameters": "default"}, ConfigError, "rope_parameters = default, expected an object"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, ConfigError, "rope_type = dynamic"),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            ConfigError,
            "type = linear, and our decoder has",
        ),
        ({"rope_parameters": {"rope_theta": [1]}}, ConfigError, "rope_theta = a list, expected a value like 10000.0"),
        ({"rope_parameters": {"rope_theta": 0}}, ConfigError, "model.rope_theta"),
        ({"num_key_value_heads": 0}, ConfigError, "model.kv_heads"),
        ({"num_attention_heads": 0}, ConfigError, "has no number num_attention_heads above 0"),
        ({"hidden_size": "absent"}, ConfigError, r"config\.json has no number hidden_size above 0"),
        ({"num_hidden_layers": 3}, CheckpointError, r"holds model\.layers\.2\.\S+ as nothing"),
        ({"intermediate_size": 10**9}, CheckpointError, r"expected \(1000000000, 32\)"),  # takes no memory for it
        ({"intermediate_size": 64}, CheckpointError, r"as \(48, 32\), expected \(64, 32\); take a model whose weights"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(corpus, tmp_path, change, error, sentence):
    saved(corpus, tmp_path / "hf")
    edit(tmp_path / "hf", **change)
    with pytest.raises(error, match=sentence):
        imported(corpus, tmp_path / "hf", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_files_that_are_missing_or_damaged_are_named(corpus, text_corpus, tmp_path):
    folder = tmp_path / "hf"
    for make, sentence in (
        (lambda: None, r"config\.json cannot be read .*; name the folder of a model of transformers"),
        (lambda: (folder / "config.json").write_text("[]"), "holds no JSON object"),
        (lambda: (folder / "model.safetensors").unlink(), "model.safetensors cannot be read .* save_pretrained"),
        (lambda: (folder / "model.safetensors").write_text("no weights"), "cannot be read"),
        (lambda: (folder / "tokenizer.json").unlink(), r"has no tokenizer\.json or tokenizer\.model"),
    ):
        shutil.rmtree(folder, ignore_errors=True)
        if "cannot be read .*; name the folder" not in sentence:
            saved(corpus, folder)
        make()
        with pytest.raises(ComeraError, match=sentence):
            imported(corpus, folder, tmp_path / "run")
    saved(corpus, folder)
    with pytest.raises(DataError, match=r"made with another tokenizer than that of .*--tokenizer \S+tokenizer\.json"):
        imported(text_corpus, folder, tmp_path / "run")


def test_every_corpus_of_a_mixture_has_the_tokenizer_of_the_model(corpus, text_corpus, tmp_path):
    """Its first corpus is compared with the model, and the mixture compares all others with the first."""
    saved(corpus, tmp_path / "hf")
    other, same = shutil.copytree(text_corpus, tmp_path / "other"), shutil.copytree(corpus, tmp_path / "same")
    for pair, sentence in (
        ((corpus, other), "other differs in its tokenizer from corpus"),
        ((other, corpus), "corpus differs in its tokenizer from other"),
    ):
        with pytest.raises(DataError, match=sentence):
            import_model(tmp_path / "hf", tmp_path / "run", None, [*KEYS, mixture_of(dict.fromkeys(pair, 1.0))])
    import_model(tmp_path / "hf", tmp_path / "run", None, [*KEYS, mixture_of({corpus: 1.0, same: 1.0})], max_tokens=50)
    assert len(load_trained(tmp_path / "run").config.data.mixture) == 2


def test_the_index_leads_to_no_other_folder(corpus, tmp_path):
    saved(corpus, tmp_path / "hf", shard_size="20KB")
    index = tmp_path / "hf/model.safetensors.index.json"
    content = json.loads(index.read_text())
    elsewhere = tmp_path / "elsewhere.safetensors"
    shutil.copy(next((tmp_path / "hf").glob("*.safetensors")), elsewhere)
    content["weight_map"] = dict.fromkeys(content["weight_map"], f"../{elsewhere.name}")
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"hf/elsewhere\.safetensors cannot be read"):
        imported(corpus, tmp_path / "hf", tmp_path / "run")


def test_the_command_prints_a_table_or_json(corpus, tmp_path, capsys, monkeypatch):
    saved(corpus, tmp_path / "hf")
    taken = ["--model", str(tmp_path / "hf"), f"data.corpus={corpus}"]
    common = ["import_hf.py", "--config", str(ROOT / "tests/defaults.yaml"), "--max-tokens", "500", *KEYS]
    monkeypatch.setattr("sys.argv", [*common, *taken, "--output", str(tmp_path / "a")])
    assert main() == 0
    table = capsys.readouterr().out
    more = ["--params", "33000", "--tokens", "500", "--json", "--output", str(tmp_path / "b")]
    monkeypatch.setattr("sys.argv", [*common, *taken, *more])
    assert main() == 0
    result = json.loads(capsys.readouterr().out)
    assert f"{result['before']['params']:,}" in table
    assert result["after"]["params"] <= 33000
    monkeypatch.setattr("sys.argv", [*common, *taken, "--format", "low_rank", "--output", str(tmp_path / "c")])
    with pytest.raises(SystemExit):
        main()
    assert "--format and --tokens are of a compression; give --params too" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", [*common, "--model", str(tmp_path), "--output", str(tmp_path / "c")])
    assert main() == 2
    assert "cannot be read" in capsys.readouterr().err
