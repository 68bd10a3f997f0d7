"""The features of an earlier data set of clicks, so that a model of it can read other rows."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.manifest import MANIFEST
from comera_dist.data.vocabulary import WORDS
from comera_dist.errors import DataError
from data_prep.clicks.features import Dictionary, Features, HashedRows, Logarithms, Standardised, read_back


def open_earlier(folder: Path, hexadecimal: bool) -> tuple[tuple[str, ...], tuple[str, ...], Features]:
    """Names of the numbers and of the categories in `folder`, and their encoding.

    `hexadecimal`: words are hashes of 32 bits. Raises DataError if `folder` holds no clicks of files of this kind.
    """
    corpus = ClickCorpus(folder)
    manifest = corpus.manifest
    try:
        words = json.loads((folder / WORDS).read_bytes())
        dense, categories = (tuple(entry["name"] for entry in manifest[kind]) for kind in ("dense", "categories"))
        tables = zip(manifest["categories"], manifest["table_rows"], strict=True)
        encoded = [_table(entry, rows, words, hexadecimal) for entry, rows in tables]
        return dense, categories, Features(_numbers(corpus), encoded)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{folder} does not say how the numbers and words of such files were encoded; name with --dictionaries "
            "what prepare_clicks.py made from files of the same kind"
        ) from error


def _numbers(corpus: ClickCorpus) -> Logarithms | Standardised:
    """Raises ValueError for numbers that were made in another way, DataError for moments that no numbers have."""
    entries = corpus.manifest["dense"]
    if all(entry["made"] == "log(x + 1)" for entry in entries):
        return Logarithms(len(entries))
    if any(entry["made"] != "standardised" for entry in entries):
        raise ValueError("made up")
    moments = [(float(entry["mean"]), float(entry["deviation"])) for entry in entries]
    for entry, (mean, deviation) in zip(entries, moments, strict=True):
        if not (isfinite(mean) and isfinite(deviation) and deviation > 0):
            raise DataError(
                f"{corpus.path / MANIFEST} is damaged: {entry['name']} has the mean {mean} and the deviation "
                f"{deviation}, expected finite numbers and a deviation above 0; {corpus.contents.remedy}"
            )
    return Standardised(*np.array(moments).T)


def _table(entry: dict[str, Any], rows: int, words: dict[str, Any], hexadecimal: bool) -> HashedRows | Dictionary:
    """Raises ValueError for a table that was made in another way, or that has other words."""
    if entry["made"] == "hashed":
        return HashedRows(int(rows))
    table = Dictionary(read_back(words[entry["name"]], hexadecimal))
    if entry["made"] != "dictionary" or table.rows != rows:
        raise ValueError("another dictionary")
    return table
