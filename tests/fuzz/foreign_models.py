"""Small models of transformers with data in the ids of their tokenizers, and what an import of them must fulfil."""

import io
import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tokenizer_kinds import LINES, byte_level, word_piece

from comera_dist.data.pairs import PairCorpus
from comera_dist.data.special_tokens import SPECIALS
from comera_dist.exchange.foreign import import_model
from comera_dist.models.encoder.vocabulary_rows import rows_for_us, special_ids
from comera_dist.run.trained import load_trained
from data_prep import prepare_pairs, tokenize_corpus

transformers = pytest.importorskip("transformers", reason="it makes the models that are imported")
LENGTH = 16
SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
KEYS = [f"data.seq_len={LENGTH}", "train.steps=1"]
BATCH = {"llama": "train.batch_tokens=64", "bert": "train.batch_size=4"}
LABELS = ["less", "more"]
SMALLER = {"llama": 6880, "bert": 1750}  # numbers of a compressed model


class Model(NamedTuple):
    """A folder that transformers has saved, and data in the ids of its tokenizer."""

    folder: Path
    corpus: Path


def saved_models(place: Path) -> dict[str, Model]:
    """A LLaMA in several files and a classifying BERT in one, as transformers saves them."""
    torch.manual_seed(0)
    found = {name: Model(place / name, make(place)) for name, make in (("llama", text), ("bert", pairs))}
    size = json.loads((found["llama"].corpus / "manifest.json").read_text())["vocab_size"]
    config = transformers.LlamaConfig(vocab_size=size, num_key_value_heads=1, **SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(found["llama"].folder, max_shard_size="9KB")
    corpus = PairCorpus(found["bert"].corpus)
    config = transformers.BertConfig(
        vocab_size=corpus.vocab_size - SPECIALS,
        id2label=dict(enumerate(LABELS)),
        max_position_embeddings=LENGTH,
        **SIZES,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(found["bert"].folder)
    for model in found.values():
        shutil.copy(model.corpus / "tokenizer.json", model.folder)
    return found


def text(place: Path) -> Path:
    byte_level().save(str(place / "tokenizer.json"))
    return prepared(place / "text", tokenize_corpus.tokenize, [{"text": line} for line in LINES[:40]], "--workers=1")


def pairs(place: Path) -> Path:
    word_piece().save(str(place / "tokenizer.json"))
    rows = [{"first": line, "second": line[:9], "label": LABELS[i % 2]} for i, line in enumerate(LINES[:20])]
    return prepared(place / "pairs", prepare_pairs.prepare, rows, "--label-key=label")


def prepared(output: Path, command, rows: list[dict], *more: str) -> Path:
    source = output.with_suffix(".jsonl")
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--source", f"files:{source}", "--tokenizer", str(output.parent / "tokenizer.json"), *more]
    with redirect_stdout(io.StringIO()):
        command([*given, "--valid-fraction", "0.4", "--output", str(output)])
    return output


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def take(model: Model, params: int | None = None, is_safe: bool = True) -> None:
    """Imports the model. What is accepted computes the same as in transformers, if that takes the folder too.

    With `is_safe` false transformers is not asked: it might wait for a pipe, or run code.
    """
    place, output = model.folder.parent, model.folder.parent / "out/run"
    shutil.rmtree(place / "out", ignore_errors=True)
    before = names_in(place)
    overrides = [*KEYS, BATCH[model.folder.name], f"data.corpus={model.corpus}"]
    try:
        with redirect_stdout(io.StringIO()):
            figures = import_model(model.folder, output, None, overrides, params, tokens=64, max_tokens=64)
    finally:
        written = {name for name in names_in(place) - before if name != "out" and not name.startswith("out/run")}
        assert not written, "files beside the output"
    assert figures["before"]["loss"] > 0
    if params is None and is_safe:
        check_same(model, load_trained(output).model)


def check_same(model: Model, ours: torch.nn.Module) -> None:
    theirs = in_transformers(model)
    if theirs is None:
        return
    tokens = torch.randint(9, 40, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        if model.folder.name == "llama":
            found, expected = ours(tokens), theirs(tokens).logits
        else:
            types, corpus = torch.arange(LENGTH).repeat(2, 1) // 9, PairCorpus(model.corpus)
            rows = torch.tensor(rows_for_us(special_ids(corpus), corpus.vocab_size))
            named = [theirs.config.id2label[index] for index in range(len(LABELS))]
            found = ours(tokens, types)
            expected = theirs(rows[tokens], token_type_ids=types).logits[:, [named.index(one) for one in LABELS]]
    torch.testing.assert_close(found, expected[..., : found.shape[-1]], rtol=1e-3, atol=1e-3)


def in_transformers(model: Model) -> torch.nn.Module | None:
    """The model as transformers reads it; None if it does not."""
    loader = {"llama": "LlamaForCausalLM", "bert": "BertForSequenceClassification"}[model.folder.name]
    asked = {"dtype": torch.float32, "trust_remote_code": False, "output_loading_info": True, "return_dict": True}
    try:
        theirs, loading = getattr(transformers, loader).from_pretrained(model.folder, **asked)
    except Exception:  # it has many ways to refuse a folder, and ours may take more
        return None
    whole = not loading["missing_keys"] and not loading["mismatched_keys"]
    return theirs.eval() if whole else None
