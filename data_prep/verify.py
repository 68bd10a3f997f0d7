"""Compares every file of prepared data with its manifest, after a copy for instance.

python data_prep/verify.py corpora/python-stdlib
"""

import json
import sys
from pathlib import Path

from comera_dist.data.columns import KINDS, ColumnSet
from comera_dist.data.shards import MANIFEST, Corpus
from data_prep.command import OneLineParser, run


def open_data(folder: Path) -> Corpus | ColumnSet:
    """Prepared data of any kind. DataError where there are none, or a file is missing or cut short."""
    try:
        kind = json.loads((folder / MANIFEST).read_bytes()).get("kind")
    except (OSError, ValueError, AttributeError):
        kind = None  # Corpus.open says what is wrong
    return ColumnSet(folder, kind) if kind in KINDS else Corpus.open(folder)


def main(argv: list[str] | None = None) -> None:
    parser = OneLineParser(description="Compare every file of prepared data with its manifest.")
    parser.add_argument("folder", type=Path, help="folder that a command of data_prep/ has made")
    folder = parser.parse_args(argv).folder
    data = open_data(folder)
    data.verify()
    print(f"{folder}: every file is as the manifest says, data set {data.fingerprint[:12]}")


if __name__ == "__main__":
    sys.exit(run(main))
