"""Judges a trained model on prepared data: python launch/evaluate.py --run runs/NAME [--corpus FOLDER] [--split NAME]

Also runs under the deepspeed launcher and torchrun, where all processes share the rows. Prints a table, or JSON.
"""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

from comera_dist.commands.arguments import positive, refuse
from comera_dist.errors import ComeraError
from comera_dist.storage.files import finite_json


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of the run")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
    parser.add_argument("--corpus", type=Path, help="prepared data (default: those that it was trained on)")
    parser.add_argument("--split", default="valid", help="which part of them (default: valid)")
    parser.add_argument(
        "--max-tokens", type=positive, help="tokens (a DLRM: rows) to read, evenly spread (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    from comera_dist.runtime.processes import leave, start_processes

    try:
        processes = start_processes(needs_group=False)
    except ComeraError as error:
        return refuse(error, is_first=True)
    from comera_dist.report.tables import show_evaluation
    from comera_dist.run.evaluate import evaluate_run

    try:
        with redirect_stdout(sys.stderr):  # what is said on the way is no part of the JSON
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
