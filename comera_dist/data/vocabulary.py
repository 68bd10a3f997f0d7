"""The meaning of the numbers in prepared data: a model may read other data if their vocabulary is the same.

A vocabulary is a sha256 for each of its parts, by name; None if the data do not tell.
"""

import hashlib
import json
from typing import Any

WORDS = "words.json"  # file of a click log with the words of each table's rows

Vocabulary = dict[str, str | None]


def text_vocabulary(manifest: dict[str, Any]) -> Vocabulary:
    """Of tokenized text: its tokenizer."""
    tokenizer = manifest.get("tokenizer")
    return {"tokenizer": tokenizer.get("sha256") if isinstance(tokenizer, dict) else None}


def label_vocabulary(manifest: dict[str, Any]) -> Vocabulary:
    """Of pairs that are classified: a class is a place in the list of labels."""
    return {"labels": _sha256(manifest.get("labels"))}


def click_vocabulary(manifest: dict[str, Any]) -> Vocabulary:
    """Of a click log: the names and scaling of its numbers, and the words of its tables."""
    files = manifest.get("files")  # absent in data of an earlier version, which do not tell the words
    tables = [manifest.get("categories"), manifest.get("table_rows")]
    dictionaries = _sha256([*tables, files.get(WORDS)]) if isinstance(files, dict) else None
    return {"numbers": _sha256(manifest.get("dense")), "dictionaries": dictionaries}


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
