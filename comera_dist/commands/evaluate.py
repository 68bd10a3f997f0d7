"""Measures a trained model on prepared data: python launch/evaluate.py --run runs/NAME [--corpus FOLDER] [--split NAME]

Also runs under the deepspeed launcher and torchrun, where all processes share the rows. Prints a table, or JSON.
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

from comera_dist.commands.arguments import positive, refuse, run_parser
from comera_dist.errors import ComeraError
from comera_dist.storage.files import finite_json


def main() -> int:
    """Ends this process with status 0, or returns the status of an error."""
    parser = run_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--corpus", type=Path, help="prepared data (default: the training data)")
    parser.add_argument("--split", default="valid", help="split of the data (default: valid)")
    parser.add_argument(
        "--max-tokens", type=positive, help="tokens (a DLRM: rows) to read, evenly spread (default: all)"
    )
    arguments = parser.parse_args()

    from comera_dist.runtime.processes import leave, start_processes

    try:
        processes = start_processes(needs_group=False)
    except ComeraError as error:
        return refuse(error, is_first=True)
    from comera_dist.report.tables import show_evaluation
    from comera_dist.run.evaluate import evaluate_run

    try:
        with redirect_stdout(sys.stderr):  # stdout is for the result alone
            result = evaluate_run(
                arguments.run, processes, arguments.step, arguments.corpus, arguments.split, arguments.max_tokens
            )
    except ComeraError as error:
        return refuse(error, processes.is_first)
    if arguments.json:
        processes.say(finite_json(result, indent=1))
    elif processes.is_first:
        show_evaluation(result)
    leave(processes, 0)


if __name__ == "__main__":
    sys.exit(main())
