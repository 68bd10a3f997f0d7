"""Scores of rows as JSON lines or CSV."""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from comera_dist.errors import ConfigError

Record = dict[str, Any]  # of one row
Writer = Callable[[Iterable[Record]], int]  # writes the records and returns their number
STDOUT = Path("-")


def writer_for(path: Path) -> Writer:
    """Writes records to standard output, or to the file `path`, which appears when it is complete and holds a record.

    Raises ConfigError if the name ends in neither .jsonl nor .csv.
    """
    if path == STDOUT:
        return partial(_write_json_lines, sys.stdout)
    if path.suffix == ".jsonl":
        return partial(_write_file, path, _write_json_lines)
    if path.suffix == ".csv":
        return partial(_write_file, path, _write_csv)
    raise ConfigError(f"--output {path} ends in neither .jsonl nor .csv; give it one of these endings")


def _write_file(path: Path, write: Callable[[TextIO, Iterable[Record]], int], records: Iterable[Record]) -> int:
    unfinished = path.with_name(f".{path.name}.tmp")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            count = write(file, records)
        if count:
            os.replace(unfinished, path)
        return count
    finally:
        with suppress(OSError):  # it is gone if all went well
            unfinished.unlink()


def _write_json_lines(file: TextIO, records: Iterable[Record]) -> int:
    count = 0
    for record in records:
        print(json.dumps(record, ensure_ascii=False), file=file)
        count += 1
    file.flush()  # a reader that has closed its end is met here, and not at the end of the process
    return count


def _write_csv(file: TextIO, records: Iterable[Record]) -> int:
    count, writer = 0, csv.writer(file)
    for record in map(_flat, records):
        if not count:
            writer.writerow(record)
        writer.writerow(record.values())
        count += 1
    return count


def _flat(record: Record) -> Record:
    """A column for each entry of an object inside of `record`, such as `probabilities.yes`."""
    flat: Record = {}
    for name, value in record.items():
        flat |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return flat
