"""Measures a trained model on prepared data: python launch/evaluate.py --run runs/NAME [--corpus FOLDER] [--split NAME]

With --tasks the model answers tasks of lm_eval instead. Also runs under the deepspeed launcher and torchrun, where all
processes share the rows. Prints a table, or JSON.
"""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comera_dist.commands.arguments import positive, refuse, run_parser
from comera_dist.errors import ComeraError
from comera_dist.storage.files import finite_json

if TYPE_CHECKING:  # it imports torch
    from comera_dist.runtime.processes import Processes

# What a model is measured on, and the options that go with it.
OPTIONS = {"tasks": ("tasks", "tasks_from", "max_items"), "corpus": ("corpus", "split", "max_tokens")}


def main() -> int:
    """Ends this process with status 0, or returns the status of an error."""
    arguments, subject = _arguments()
    from comera_dist.runtime.processes import leave, start_processes

    try:
        processes = start_processes(needs_group=False)
    except ComeraError as error:
        return refuse(error, is_first=True)
    from comera_dist.report.tables import show_evaluation, show_tasks

    measure = {"tasks": _on_tasks, "corpus": _on_corpus}[subject]
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the result alone
            result = measure(arguments, processes)
    except ComeraError as error:
        return refuse(error, processes.is_first)
    if arguments.json:
        processes.say(finite_json(result, indent=1))
    elif processes.is_first:
        show = show_tasks if subject == "tasks" else show_evaluation
        show(result)
    leave(processes, 0)


def _arguments() -> tuple[argparse.Namespace, str]:
    """The arguments, and the key of OPTIONS that says what is measured."""
    parser = run_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--corpus", type=Path, help="prepared data (default: the training data)")
    parser.add_argument("--split", help="split of the data (default: valid)")
    parser.add_argument(
        "--max-tokens", type=positive, help="tokens (a DLRM: rows) to read, evenly spread (default: all)"
    )
    parser.add_argument("--tasks", type=_names, metavar="NAME,NAME", help="tasks of lm_eval to answer")
    parser.add_argument("--tasks-from", type=Path, metavar="FOLDER", help="YAML files of more tasks, and their code")
    parser.add_argument("--max-items", type=positive, help="items of each task to answer (default: all)")
    arguments = parser.parse_args()
    subject = "tasks" if arguments.tasks else "corpus"
    strangers = {option for options in OPTIONS.values() for option in options} - {*OPTIONS[subject]}
    for option in sorted(strangers):
        if getattr(arguments, option) is not None:
            parser.error(
                f"--{option.replace('_', '-')} {'does not go' if arguments.tasks else 'goes only'} with --tasks"
            )
    return arguments, subject


def _names(text: str) -> list[str]:
    if not all(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} names no task; give names with commas between them")
    return text.split(",")


def _on_corpus(arguments: argparse.Namespace, processes: "Processes") -> dict[str, Any]:
    from comera_dist.run.evaluate import evaluate_run

    place = arguments.run, processes, arguments.step
    return evaluate_run(*place, arguments.corpus, arguments.split or "valid", arguments.max_tokens)


def _on_tasks(arguments: argparse.Namespace, processes: "Processes") -> dict[str, Any]:
    from comera_dist.judge.tasks import judge_on_tasks

    place = arguments.run, processes, arguments.step
    return judge_on_tasks(*place, arguments.tasks, arguments.tasks_from, arguments.max_items)


if __name__ == "__main__":
    sys.exit(main())
