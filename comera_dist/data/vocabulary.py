"""What the numbers in the rows of prepared data stand for: a model may read other data where this is the same.

A vocabulary holds a sha256 for each of its parts, by name; None where the data do not tell.
"""

import hashlib
import json
from typing import Any

WORDS = "words.json"  # the words of each table's rows, among the further files of a click log

Vocabulary = dict[str, str | None]


def text_vocabulary(manifest: dict[str, Any]) -> Vocabulary:
    """Of a tokenized corpus: a number is a token of its tokenizer."""
    tokenizer = manifest.get("tokenizer")
    return {"tokenizer": tokenizer.get("sha256") if isinstance(tokenizer, dict) else None}


def label_vocabulary(manifest: dict[str, Any]) -> Vocabulary:
    """Of pairs that are classified: a class is a place in the list of labels."""
    return {"labels": _sha256(manifest.get("labels"))}


def click_vocabulary(manifest: dict[str, Any]) -> Vocabulary:
    """Of a click log: names of its columns, how numbers were scaled, and which words the rows of its tables are."""
    files = manifest.get("files")
    tables = None
    if isinstance(files, dict):
        tables = _sha256([manifest.get("categories"), manifest.get("table_rows"), files.get(WORDS)])
    return {
        "numbers": _sha256(manifest.get("dense")),
        "dictionaries": tables,  # an earlier version did not note which ones it wrote
    }


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
