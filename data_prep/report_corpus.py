"""Writes a page of HTML about prepared data: sizes, lengths, copies, languages and tokens, or columns and labels.

python data_prep/report_corpus.py --corpus corpora/python-stdlib --output report.html
"""

import sys
from pathlib import Path

from comera_dist.data.data_kind import TEXT, kind_of
from comera_dist.errors import DataError
from comera_dist.storage.files import write_whole
from data_prep.command import OneLineParser, positive, run
from data_prep.text.arguments import similarity

_SAMPLE = 20_000  # chosen: documents whose sketches take 68 MB of memory
_SIMILARITY = 0.8  # chosen: the value that docs/guide/text.md shows


def report(argv: list[str] | None = None) -> None:
    """The whole command. Raises ComeraError for everything that the user can mend."""
    parser = OneLineParser(description="Write a page of HTML about prepared data.")
    add = parser.add_argument
    add("--corpus", type=Path, required=True, help="folder that a command of data_prep/ has made")
    add("--output", type=Path, default=Path("report.html"), help="file of the page (default: report.html)")
    add(
        "--sample",
        type=positive,
        default=_SAMPLE,
        help=f"documents, pairs or rows of each split that are read, spread evenly (default {_SAMPLE})",
    )
    add(
        "--near-duplicates",
        type=similarity,
        metavar="SIMILARITY",
        help=f"documents this similar count as near copies (default {_SIMILARITY})",
    )
    args = parser.parse_args(argv)
    page, samples = _report(args.corpus, args.sample, args.near_duplicates)
    write_whole(args.output, page)
    print("\n".join(samples))
    print(f"{args.output} describes {args.corpus}; open it in a browser.")


def _report(folder: Path, sample: int, near: float | None) -> tuple[str, list[str]]:
    # Imported here, because matplotlib takes long and the command line may be wrong.
    from data_prep.report.page import click_report, text_report

    kind = kind_of(folder)
    if kind in (TEXT, "pairs"):
        return text_report(folder, kind, sample, near or _SIMILARITY)
    if kind == "clicks":
        if near:
            raise DataError(f"--near-duplicates compares texts, and {folder} holds clicks; remove it")
        return click_report(folder, sample)
    raise DataError(f"{folder} holds {kind}, and a report describes text, pairs or clicks; name such a data set")


def main() -> int:
    return run(report)


if __name__ == "__main__":
    sys.exit(main())
