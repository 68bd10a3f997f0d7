"""A corpus of text with a tokenizer of its own, made by the commands that users call."""

import json
from collections.abc import Iterable
from pathlib import Path

from data_prep import tokenize_corpus, train_tokenizer

VOCAB = 330  # entries of the tokenizer of the fixture `text_corpus`


def code(index: int) -> str:
    """A document that repeats one function of Python, with a character of two bytes."""
    return f"def function_{index}():\n    return {index} * 2 \u00e9\n" * (5 + index % 7)


def make_text_corpus(folder: Path, texts: Iterable[str], vocab_size: int) -> Path:
    """The folder of a corpus of these documents, a fifth of which is held out."""
    (folder / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = ["--source", f"files:{folder}/docs.jsonl", "--valid-fraction", "0.2"]
    train_tokenizer.train([*source, "--output", f"{folder}/tokenizer.model", "--vocab-size", str(vocab_size)])
    tokenizer = ["--tokenizer", f"{folder}/tokenizer.model"]
    tokenize_corpus.tokenize([*source, *tokenizer, "--output", f"{folder}/corpus", "--workers", "1"])
    return folder / "corpus"
