"""Compares every file of prepared data with its manifest, after a copy for instance.

python data_prep/verify.py corpora/python-stdlib
"""

import sys
from pathlib import Path

from comera_dist.data.columns import KINDS, ColumnSet
from comera_dist.data.manifest import ManifestError, read_json
from comera_dist.data.shards import MANIFEST, Corpus
from data_prep.command import OneLineParser, run


def open_data(folder: Path) -> Corpus | ColumnSet:
    """Prepared data of any kind. DataError where there are none, or a file is missing or cut short."""
    kind = _kind(folder)
    return ColumnSet(folder, kind) if kind in KINDS else Corpus.open(folder)


def _kind(folder: Path) -> str | None:
    """None for tokenized text, and where there is no manifest to say: Corpus.open tells what is wrong."""
    try:
        kind = read_json(folder / MANIFEST).get("kind")
    except (OSError, ManifestError, AttributeError):
        return None
    return kind if isinstance(kind, str) else None


def main(argv: list[str] | None = None) -> None:
    parser = OneLineParser(description="Compare every file of prepared data with its manifest.")
    parser.add_argument("folder", type=Path, help="folder that a command of data_prep/ has made")
    folder = parser.parse_args(argv).folder
    data = open_data(folder)
    data.verify()
    print(f"{folder}: every file is as the manifest says, data set {data.fingerprint[:12]}")


if __name__ == "__main__":
    sys.exit(run(main))
