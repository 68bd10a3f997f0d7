"""Compares every file of prepared data with its manifest, e.g. after a copy.

python data_prep/verify.py corpora/python-stdlib
"""

import sys
from pathlib import Path

from comera_dist.data.columns import KINDS, ColumnSet
from comera_dist.data.data_kind import kind_of
from comera_dist.data.shards import Corpus
from data_prep.command import OneLineParser, run


def verify(argv: list[str] | None = None) -> None:
    """The whole command. Raises DataError for the first file that is missing or differs."""
    parser = OneLineParser(description="Compare every file of prepared data with its manifest.")
    parser.add_argument("folder", type=Path, help="folder that a command of data_prep/ has made")
    folder = parser.parse_args(argv).folder
    kind = kind_of(folder)
    data = ColumnSet(folder, kind) if kind in KINDS else Corpus(folder)
    data.contents.verify()
    print(f"{folder}: every file is as the manifest says, data set {data.fingerprint[:12]}")


def main() -> int:
    return run(verify)


if __name__ == "__main__":
    sys.exit(main())
