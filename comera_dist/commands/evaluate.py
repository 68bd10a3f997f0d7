"""Measures a trained model on prepared data: python launch/evaluate.py --run runs/NAME [--corpus FOLDER] [--split NAME]

With --report it writes plots of loss by position and of calibration. With --text it reads any text in sliding windows
instead, and with --tasks it answers tasks of lm_eval. Also runs under the deepspeed launcher and torchrun, where all
processes share the rows; torchrun wants -- before the script. Prints a table, or JSON.
"""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comera_dist.commands.arguments import not_negative, positive, printing, refuse, run_parser
from comera_dist.errors import ComeraError
from comera_dist.storage.files import finite_json

if TYPE_CHECKING:  # it imports torch
    from comera_dist.runtime.processes import Processes

# What a model is measured on, by the option that says it, and the options that go with it.
OPTIONS = {
    "tasks": ("tasks", "tasks_from", "max_items", "shots"),
    "text": ("text", "stride"),
    "corpus": ("corpus", "split", "max_tokens", "report"),
}


def main() -> int:
    """Ends this process with status 0, or returns the status of an error."""
    arguments, subject = _arguments()
    from comera_dist.runtime.processes import leave, start_processes

    try:
        processes = start_processes(needs_group=False)
    except ComeraError as error:
        return refuse(error, is_first=True)
    from comera_dist.report.judgement_tables import show_evaluation, show_tasks, show_text

    measure = {"tasks": _on_tasks, "text": _on_text, "corpus": _on_corpus}[subject]
    show = {"tasks": show_tasks, "text": show_text, "corpus": show_evaluation}[subject]
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the result alone
            result = measure(arguments, processes)
    except ComeraError as error:
        return refuse(error, processes.is_first)
    with printing():
        if arguments.json:
            processes.say(finite_json(result, indent=1))
        elif processes.is_first:
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
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="measure calibration and loss by position too")
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="file of UTF-8 text to read, instead of prepared data"
    )
    parser.add_argument("--stride", type=positive, help="tokens from a window of the text to the next (default: half)")
    parser.add_argument("--tasks", type=_names, metavar="NAME,NAME", help="tasks of lm_eval to answer")
    parser.add_argument("--tasks-from", type=Path, metavar="FOLDER", help="YAML files of more tasks, and their code")
    parser.add_argument("--max-items", type=positive, help="items of each task to answer (default: all)")
    parser.add_argument(
        "--shots", type=not_negative, help="solved examples before each item (default: as the task says)"
    )
    arguments = parser.parse_args()
    subject = next((name for name in ("tasks", "text") if getattr(arguments, name) is not None), "corpus")
    for option in sorted({option for options in OPTIONS.values() for option in options} - {*OPTIONS[subject]}):
        if getattr(arguments, option) is not None:
            goes_with = next(name for name, options in OPTIONS.items() if option in options)
            does_not = f"does not go with --{subject}" if subject != "corpus" else f"goes only with --{goes_with}"
            parser.error(f"--{option.replace('_', '-')} {does_not}")
    return arguments, subject


def _names(text: str) -> list[str]:
    if not all(text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} names no task; give names with commas between them")
    return text.split(",")


def _on_corpus(arguments: argparse.Namespace, processes: "Processes") -> dict[str, Any]:
    from comera_dist.judge.report import judge_with_report
    from comera_dist.run.evaluate import evaluate_run

    data = arguments.corpus, arguments.split or "valid", arguments.max_tokens
    if arguments.report is None:
        return evaluate_run(arguments.run, processes, arguments.step, *data)
    return judge_with_report(arguments.run, processes, arguments.step, *data, arguments.report)


def _on_text(arguments: argparse.Namespace, processes: "Processes") -> dict[str, Any]:
    from comera_dist.judge.text import judge_on_text

    return judge_on_text(arguments.run, processes, arguments.step, arguments.text, arguments.stride)


def _on_tasks(arguments: argparse.Namespace, processes: "Processes") -> dict[str, Any]:
    from comera_dist.judge.tasks import judge_on_tasks

    place = arguments.run, processes, arguments.step
    return judge_on_tasks(*place, arguments.tasks, arguments.tasks_from, arguments.max_items, arguments.shots)


if __name__ == "__main__":
    sys.exit(main())
