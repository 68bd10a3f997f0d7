"""Scores rows of a file with a trained model: python launch/predict.py --run runs/NAME --input FILE [--output FILE]

The model is a classifier of text pairs or a DLRM. The input is a table with the columns of the sources of its training
data; labels are not needed. Each row that can be read gets a record: its number in the file, and the label and the
probability of each class, or the probability of a click.
"""

import argparse
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from comera_dist.commands.arguments import printing, refuse, run_parser
from comera_dist.commands.preparation import preparation_module
from comera_dist.errors import ComeraError, ConfigError, DataError
from comera_dist.report.scores import STDOUT, writer_for
from comera_dist.runtime.launchers import check_is_alone

if TYPE_CHECKING:  # it imports torch
    from comera_dist.run.trained import Trained


def main() -> int:
    """Ends this process with status 0, or returns the status of an error."""
    arguments = _arguments()
    try:
        check_is_alone("launch/predict.py")
        writer_for(arguments.output)  # refuses the name of the output before anything is read
        _check_kept(arguments)
        # Heavy imports come after the command line is known to be good.
        from comera_dist.runtime.processes import leave, start_processes

        processes = start_processes(needs_group=False)
        from comera_dist.run.predict import open_scorer

        with redirect_stdout(sys.stderr):  # stdout is for the scores alone
            trained = open_scorer(arguments.run, processes, arguments.step, arguments.corpus)
        with printing():
            _score(trained, arguments)
    except ComeraError as error:
        return refuse(error, is_first=True)
    except OSError as error:
        place = error.filename or arguments.output
        return refuse(DataError(f"{place} cannot be read or written ({error.strerror}); mend that"), is_first=True)
    leave(processes, 0)


def _arguments() -> argparse.Namespace:
    parser = run_parser(__doc__)
    parser.add_argument(
        "--input", type=Path, required=True, help="table of rows, like the sources of the training data"
    )
    parser.add_argument("--output", type=Path, default=STDOUT, help=".jsonl or .csv file (default: -, JSON lines)")
    parser.add_argument("--corpus", type=Path, help="the training data, if they have moved")
    parser.add_argument("--join", type=Path, help="table that prepare_clicks.py joined to the training data")
    parser.add_argument("--strict", action="store_true", help="stop at the first row that cannot be used")
    return parser.parse_args()


def _check_kept(arguments: argparse.Namespace) -> None:
    """ConfigError if the scores would take the place of a table that is read."""
    output: Path = arguments.output
    for option in ("input", "join"):
        source = getattr(arguments, option)
        if source is not None and output.exists() and source.exists() and output.samefile(source):
            raise ConfigError(f"--output {output} is the file of --{option}, which it would replace; name another one")


def _score(trained: "Trained", arguments: argparse.Namespace) -> None:
    """Scores the rows, and says on stderr how many there were and which could not be used."""
    from comera_dist.run.predict import predict

    scoring, faults = preparation_module("scoring.opening"), preparation_module("files.skips")
    skips, started = faults.Skips(arguments.strict, ()), time.monotonic()
    with faults.told_on_failure(skips):
        rows = scoring.open_rows(arguments.input, trained.config.data, skips, arguments.join)
        count = writer_for(arguments.output)(predict(trained, rows))
        if not count:
            raise DataError(f"no row of {arguments.input} can be scored; mend its rows")
    for line in (*skips.report(), *rows.notes()):
        print(line, file=sys.stderr)
    seconds = time.monotonic() - started
    print(f"{count:,} rows of {arguments.input} in {seconds:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
