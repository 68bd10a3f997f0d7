"""BERT and Megatron-BERT of transformers become runs of ours: the same logits for the same texts, and back again."""

import json
import shutil

import numpy as np
import pytest
import torch
from forked import run_processes
from safetensors.torch import load_file, save_file
from support import losses
from tokenizer_kinds import byte_level, word_piece
from tokenizers.processors import TemplateProcessing

from comera_dist.compress.write_run import write_run
from comera_dist.config.reader import read_config
from comera_dist.data.pairs import JoinedPairs, PairCorpus
from comera_dist.data.special_tokens import NAMES, SPECIALS
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, ConfigError, DataError
from comera_dist.exchange.export import export
from comera_dist.exchange.foreign import import_model
from comera_dist.models.family import build_model, plan_model
from comera_dist.run.trained import load_trained
from comera_dist.runtime.processes import alone
from data_prep import prepare_pairs

transformers = pytest.importorskip("transformers", reason="it makes the models that are imported")
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
PLACES, LENGTH = 40, 32
KEYS = [f"data.seq_len={LENGTH}", "train.steps=1", "train.batch_size=8"]
TEXTS = [(f"for item_{i} in range({i}):", f"total += {i * i % 7} # {i}") for i in range(60)]
LABELS = ["same", "more", "much"]  # by the classes of the models; the data have them in alphabetical order
both_norms = pytest.mark.parametrize("norm", ["post", "pre"])


def prepared(folder, tokenizer):
    """Labelled pairs in the ids of a tokenizer.json."""
    rows = [{"first": a, "second": b, "label": LABELS[i % 3]} for i, (a, b) in enumerate(TEXTS)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = ["--source", f"files:{folder}/pairs.jsonl", "--label-key", "label", "--valid-fraction", "0.3"]
    prepare_pairs.prepare([*source, "--tokenizer", str(tokenizer), "--output", str(folder / "prepared")])
    return folder / "prepared"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("bert"), word_piece()
    marks = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    made.post_processor = TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", marks)
    made.save(str(folder / "tokenizer.json"))
    return prepared(folder, folder / "tokenizer.json")


def saved(pairs, folder, norm="post", task="MaskedLM", rows_more=0, shard_size="5GB", **settings):
    """A random model with the tokenizer of the pairs, as transformers saves it. No number is at a usual value."""
    family, size = {"post": "Bert", "pre": "MegatronBert"}[norm], PairCorpus(pairs).vocab_size - SPECIALS + rows_more
    common = {"vocab_size": size, "max_position_embeddings": PLACES, "id2label": dict(enumerate(LABELS))}
    config = getattr(transformers, f"{family}Config")(**SIZES, **(common | settings))
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}For{task}")(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    model.save_pretrained(folder, max_shard_size=shard_size)
    shutil.copy(pairs / "tokenizer.json", folder)
    return model


def imported(pairs, folder, output, *overrides, **options):
    return import_model(folder, output, None, [*KEYS, *overrides, f"data.corpus={pairs}"], max_tokens=500, **options)


def tokenizer_in(folder):
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")


def special_ids(folder):
    """Our ids of special tokens by those of the tokenizer in `folder`."""
    return {tokenizer_in(folder).convert_tokens_to_ids(name): ours for ours, name in enumerate(NAMES)}


def rows_of_both(pairs, folder):
    """The validation rows as ours, and as the tokenizer of the model encodes the same texts: tokens and types each."""
    corpus, theirs = PairCorpus(pairs), tokenizer_in(folder)
    texts = JoinedPairs(corpus, "valid", LENGTH)
    tokens, types = (torch.from_numpy(array) for array in texts.read(np.arange(len(texts))))
    asked = {"padding": "max_length", "max_length": LENGTH, "return_token_type_ids": True}
    encoded = theirs([a for a, _ in TEXTS], [b for _, b in TEXTS], **asked)
    special = special_ids(folder)
    known = {
        tuple(special.get(token, SPECIALS + token) for token in ids): (ids, kinds)
        for ids, kinds in zip(encoded.input_ids, encoded.token_type_ids, strict=True)
    }
    found = [known[tuple(row)] for row in tokens.tolist()]  # a KeyError if our rows were not theirs
    their_tokens, their_types = (torch.tensor(columns) for columns in zip(*found, strict=True))
    keep = tokens != 0
    torch.testing.assert_close(types * keep, their_types * keep)
    return (tokens, types), (their_tokens, their_types), keep


def check_same_logits(pairs, folder, run, theirs, classes=None):
    """Our logits of a run's model are those of `theirs`, for texts that both tokenize themselves."""
    ours, (own, foreign, keep) = load_trained(run).model, rows_of_both(pairs, folder)
    with torch.no_grad():
        expected = theirs(foreign[0], token_type_ids=foreign[1], attention_mask=keep.long())
        if classes is not None:
            found, expected = ours(*own), expected.logits[:, classes]
        else:
            places = torch.arange(LENGTH).expand(len(keep), -1)
            found = ours(*own, places)[keep]
            logits = (expected.logits if "logits" in expected else expected.prediction_logits)[keep]
            special, size = special_ids(folder), found.shape[1] - SPECIALS
            found = found[:, [special.get(token, SPECIALS + token) for token in range(size)]]
            expected = logits[:, :size]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert expected.var(0).mean() > 1e-3  # rows differ by far more than the tolerance


@both_norms
@pytest.mark.parametrize(("task", "more"), [("MaskedLM", {"rows_more": 7, "shard_size": "20KB"}), ("PreTraining", {})])
def test_logits_of_hidden_words_are_those_of_transformers(pairs, tmp_path, norm, task, more):
    theirs = saved(pairs, tmp_path / "hf", norm, task, **more)
    found = imported(pairs, tmp_path / "hf", tmp_path / "run")
    check_same_logits(pairs, tmp_path / "hf", tmp_path / "run", theirs)
    assert found["before"]["params"] == sum(p.numel() for p in load_trained(tmp_path / "run").model.parameters())
    assert 0 <= found["before"]["accuracy"] <= 1


@both_norms
def test_logits_of_classes_are_those_of_transformers_in_the_order_of_our_labels(pairs, tmp_path, norm):
    theirs = saved(pairs, tmp_path / "hf", norm, "SequenceClassification", layer_norm_eps=1e-3)
    imported(pairs, tmp_path / "hf", tmp_path / "run")
    assert PairCorpus(pairs).labels == ["more", "much", "same"]
    check_same_logits(pairs, tmp_path / "hf", tmp_path / "run", theirs, classes=[1, 2, 0])


def test_old_names_of_norms_are_read(pairs, tmp_path):
    theirs = saved(pairs, tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = load_file(file)
    for now, before in old.items():
        weights = {name.replace(now, before): weight for name, weight in weights.items()}
    save_file(weights, file, {"format": "pt"})
    imported(pairs, tmp_path / "hf", tmp_path / "run")
    check_same_logits(pairs, tmp_path / "hf", tmp_path / "run", theirs)


@both_norms
@pytest.mark.parametrize("task", ["MaskedLM", "SequenceClassification"])
def test_what_was_imported_goes_back_bit_for_bit(pairs, tmp_path, norm, task):
    saved(pairs, tmp_path / "hf", norm, task, id2label=dict(enumerate(sorted(LABELS))))
    imported(pairs, tmp_path / "hf", tmp_path / "run")
    export(tmp_path / "run", tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    theirs, back = tokenizer_in(tmp_path / "hf"), transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    for first, second in [*TEXTS[:5], ("total", "[MASK] [PAD] é")]:
        encoded = theirs(first, second, split_special_tokens=True, return_token_type_ids=True)
        assert back(first, second).input_ids == encoded.input_ids
        assert back(first, second).token_type_ids == encoded.token_type_ids
    assert back.mask_token_id == theirs.convert_tokens_to_ids("[MASK]")
    model, told = getattr(transformers, f"AutoModelFor{task}").from_pretrained(
        tmp_path / "back", output_loading_info=True
    )
    assert not any(told.values()), told
    assert model.config.pad_token_id == theirs.pad_token_id


@both_norms
def test_what_was_exported_comes_back(pair_corpus, tmp_path, norm):
    """Its sentencepiece tokenizer has become a tokenizer.json, in whose ids the pairs are prepared again."""
    sizes = ["model.kind=encoder", "model.d_model=16", "model.layers=2", "model.heads=2", "model.d_ff=24"]
    shapes = ["model.positions=40", "model.format=low_rank", f"model.norm={norm}", f"data.corpus={pair_corpus}"]
    config = read_config(None, [*KEYS, *sizes, *shapes, "model.output_bias=true"])
    task, generator = open_task(config), torch.Generator().manual_seed(2)
    plan = plan_model(config, task.facts)
    model = build_model(config.model, plan, generator)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    write_run(tmp_path / "own", config, plan, model, task, alone())
    export(tmp_path / "own", tmp_path / "hf")
    imported(prepared(tmp_path, tmp_path / "hf/tokenizer.json"), tmp_path / "hf", tmp_path / "back")
    own, back = (load_trained(tmp_path / name).model for name in ("own", "back"))
    tokens = torch.randint(4, 300, (3, 12), generator=generator)
    tokens[:, :4] = torch.arange(1, 5) % 4
    places = torch.arange(12).expand(3, 12)
    again = torch.where(tokens < SPECIALS, tokens, tokens + SPECIALS)
    with torch.no_grad():
        found, expected = back(again, tokens % 2, places), own(tokens, tokens % 2, places)
    torch.testing.assert_close(found[..., SPECIALS:], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", ["MaskedLM", "SequenceClassification"])
def test_it_is_compressed_trained_further_and_exported(pairs, tmp_path, task):
    saved(pairs, tmp_path / "hf", task=task)
    dense = imported(pairs, tmp_path / "hf", tmp_path / "dense")
    params = dense["before"]["params"] - 4000
    small = imported(pairs, tmp_path / "hf", tmp_path / "small", params=params, tokens=2000)
    assert small["before"] == dense["before"]
    assert params * 0.98 < small["after"]["params"] <= params
    config = load_trained(tmp_path / "small").config
    kept = [f"model.{key}={json.dumps(value)}" for key, value in config.model.model_dump(mode="json").items()]
    place = [f"data.corpus={pairs}", f"run.directory={tmp_path}", "run.name=next", "wandb.mode=disabled"]
    # Nothing in the pairs tells their classes: long steps would end in one answer for all rows.
    more = [
        f"optim.lr={3e-3 if task == 'MaskedLM' else 1e-4}",
        "log.every=1",
        f"run.start_from={tmp_path}/small",
        "log.plots=false",
        "train.steps=20",
    ]
    assert run_processes(1, "train_runs", runs=[[*KEYS, *kept, *place, *more]]) == [[0]]
    summary = json.loads((tmp_path / "next/summary.json").read_text())
    assert summary["params"] == small["after"]["params"]
    # Of 8 rows. A fresh model of masked words is further away: these weights are no good ones.
    assert losses(tmp_path, "next")[0] == pytest.approx(small["after"]["loss"], abs=0.8)
    if task == "MaskedLM":
        assert summary["val_loss"] < small["after"]["loss"] - 0.5
    export(tmp_path / "next", tmp_path / "factors", keep_factors=True)
    auto = getattr(transformers, f"AutoModelFor{task}")
    theirs = auto.from_pretrained(tmp_path / "factors", trust_remote_code=True).eval()
    classes = None if task == "MaskedLM" else range(3)
    check_same_logits(pairs, tmp_path / "factors", tmp_path / "next", theirs, classes)


def edit(folder, **changes):
    settings = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in (settings | changes).items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("task", "change", "error", "sentence"),
    [
        ("MaskedLM", {"hidden_act": "gelu_new"}, ConfigError, "hidden_act = gelu_new, and our encoder has gelu;"),
        ("MaskedLM", {"position_embedding_type": "relative_key"}, ConfigError, "and our encoder has absolute"),
        ("MaskedLM", {"is_decoder": True}, ConfigError, "is_decoder = True, and our encoder has False"),
        ("MaskedLM", {"type_vocab_size": 4}, ConfigError, "type_vocab_size = 4, and our encoder has 2"),
        ("MaskedLM", {"tie_word_embeddings": False}, ConfigError, "tie_word_embeddings = False"),
        (
            "MaskedLM",
            {"architectures": ["BertModel"]},
            ConfigError,
            "architectures = BertModel, expected one of BertForM",
        ),
        ("MaskedLM", {"architectures": "absent"}, ConfigError, "architectures = None, expected one of BertForMaskedLM"),
        ("MaskedLM", {"max_position_embeddings": "absent"}, ConfigError, "has no number max_position_embeddings"),
        (
            "MaskedLM",
            {"max_position_embeddings": 16},
            ConfigError,
            "data.seq_len = 32 is longer than model.positions = 16",
        ),
        ("MaskedLM", {"max_position_embeddings": 50}, CheckpointError, r"as \(40, 32\), expected \(50, 32\)"),
        ("MaskedLM", {"model_type": "gpt2"}, ConfigError, "name a folder of llama or bert or megatron-bert"),
        ("SequenceClassification", {"problem_type": "regression"}, ConfigError, "problem_type = regression"),
        ("SequenceClassification", {"id2label": {"0": "x"}}, ConfigError, "has 1 class, expected 2 or more"),
        ("SequenceClassification", {"id2label": "absent"}, ConfigError, "model.classes = 2 and the data have 3"),
        (
            "SequenceClassification",
            {"id2label": {"0": "more", "1": "b", "2": "same"}},
            ConfigError,
            "has the label much and the model has the classes more, b, same; name its classes as the labels",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(pairs, tmp_path, task, change, error, sentence):
    saved(pairs, tmp_path / "hf", task=task)
    edit(tmp_path / "hf", **change)
    with pytest.raises(error, match=sentence):
        imported(pairs, tmp_path / "hf", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tokenizers_that_do_not_fit_are_refused(pairs, pair_corpus, tmp_path):
    saved(pairs, tmp_path / "hf")
    byte_level().save(str(tmp_path / "tokenizer.json"))
    others = prepared(tmp_path, tmp_path / "tokenizer.json")
    with pytest.raises(
        DataError, match=r"another tokenizer than that of .*; prepare the data with --tokenizer \S+json"
    ):
        imported(others, tmp_path / "hf", tmp_path / "run")
    shutil.copy(tmp_path / "tokenizer.json", tmp_path / "hf")
    with pytest.raises(DataError, match=r"has no token \[PAD\], which an encoder of transformers needs"):
        imported(others, tmp_path / "hf", tmp_path / "run")
    shutil.copy(pair_corpus / "tokenizer.model", tmp_path / "hf")
    with pytest.raises(DataError, match="was made with a sentencepiece model; prepare it with"):
        imported(pair_corpus, tmp_path / "hf", tmp_path / "run")


def test_a_table_of_factors_cannot_be_put_in_the_tokenizers_order(pairs, tmp_path):
    sizes = ["model.kind=encoder", "model.d_model=16", "model.layers=1", "model.heads=2", "model.positions=40"]
    config = read_config(None, [*KEYS, *sizes, "model.format=low_rank", f"data.corpus={pairs}"])
    task = open_task(config)
    plan = plan_model(config, task.facts)
    model = build_model(config.model, plan, torch.Generator().manual_seed(0))
    write_run(tmp_path / "run", config, plan, model, task, alone())
    with pytest.raises(ConfigError, match=r"word_embeddings.weight is stored as factors, .* without --keep-factors"):
        export(tmp_path / "run", tmp_path / "out", keep_factors=True)
    export(tmp_path / "run", tmp_path / "dense")
    check_same_logits(
        pairs,
        tmp_path / "dense",
        tmp_path / "run",
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "dense"),
    )


def test_a_class_without_a_name_is_not_left_out(pairs, tmp_path):
    """transformers refuses such a model, too."""
    saved(pairs, tmp_path / "hf", task="SequenceClassification", id2label=dict(enumerate([*LABELS, "none"])))
    settings = json.loads((tmp_path / "hf/config.json").read_text())
    (tmp_path / "hf/config.json").write_text(json.dumps(settings | {"id2label": dict(enumerate(LABELS))}))
    with pytest.raises(CheckpointError, match=r"holds classifier\.weight as \(4, 32\), expected \(3, 32\)"):
        imported(pairs, tmp_path / "hf", tmp_path / "run")
