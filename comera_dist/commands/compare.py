"""Writes a page of HTML about runs: python launch/compare.py runs/A [runs/B ...] [--output compare.html]

The page has final figures, loss curves, ranks and updates over time, and the keys in which the configurations
differ. It reads the files of the runs alone, and a run need not be finished.
"""

import os
import sys
from pathlib import Path

from comera_dist.commands.arguments import plain_parser, refuse
from comera_dist.errors import ComeraError, RunDirectoryError


def main() -> int:
    """Returns the exit status."""
    parser = plain_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directory of a run")
    parser.add_argument("--output", type=Path, default=Path("compare.html"), help="default: compare.html")
    arguments = parser.parse_args()
    try:
        write_comparison(arguments.runs, arguments.output)
    except ComeraError as error:
        return refuse(error, is_first=True)
    output = str(arguments.output).encode(errors="replace").decode()  # a name need not be UTF-8
    print(f"{output} compares {len(arguments.runs)} run(s); open it in a browser.")
    return 0


def write_comparison(paths: list[Path], output: Path) -> None:
    """Raises RunDirectoryError if a run cannot be read, or the page cannot be written."""
    if os.path.isdir(output):
        raise RunDirectoryError(f"{output} is a folder; name a file for the page, e.g. {output / 'compare.html'}")
    # Imported here, because matplotlib takes long and the command line may be wrong.
    from comera_dist.report.compare.page import comparison_page
    from comera_dist.report.compare.run_files import read_runs
    from comera_dist.storage.files import write_whole

    page = comparison_page(read_runs(paths)).encode(errors="replace")  # the name of a folder need not be UTF-8
    try:
        write_whole(output, page)
    except OSError as error:
        raise RunDirectoryError(
            f"{output} cannot be written ({error.strerror}); name a file in a folder that this user may write to"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
