"""The features of an earlier data set of clicks, so that a model of it can read other rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.vocabulary import WORDS
from comera_dist.errors import DataError
from data_prep.clicks.features import Dictionary, Features, HashedRows, Logarithms, Standardised, read_back


def open_earlier(folder: Path, hexadecimal: bool) -> tuple[tuple[str, ...], tuple[str, ...], Features]:
    """Names of the numbers and of the categories in `folder`, and their encoding.

    `hexadecimal`: words are hashes of 32 bits. Raises DataError if `folder` holds no clicks of files of this kind.
    """
    manifest = ClickCorpus(folder).manifest
    try:
        words = json.loads((folder / WORDS).read_bytes())
        dense, categories = (tuple(entry["name"] for entry in manifest[kind]) for kind in ("dense", "categories"))
        tables = zip(manifest["categories"], manifest["table_rows"], strict=True)
        encoded = [_table(entry, rows, words, hexadecimal) for entry, rows in tables]
        return dense, categories, Features(_numbers(manifest["dense"]), encoded)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{folder} does not say how the numbers and words of such files were encoded; name with --dictionaries "
            "what prepare_clicks.py made from files of the same kind"
        ) from error


def _numbers(entries: list[dict[str, Any]]) -> Logarithms | Standardised:
    """Raises ValueError for numbers that were made in another way."""
    if all(entry["made"] == "log(x + 1)" for entry in entries):
        return Logarithms(len(entries))
    if any(entry["made"] != "standardised" for entry in entries):
        raise ValueError("made up")
    return Standardised(*(np.array([float(entry[key]) for entry in entries]) for key in ("mean", "deviation")))


def _table(entry: dict[str, Any], rows: int, words: dict[str, Any], hexadecimal: bool) -> HashedRows | Dictionary:
    """Raises ValueError for a table that was made in another way, or that has other words."""
    if entry["made"] == "hashed":
        return HashedRows(int(rows))
    table = Dictionary(read_back(words[entry["name"]], hexadecimal))
    if entry["made"] != "dictionary" or table.rows != rows:
        raise ValueError("another dictionary")
    return table
