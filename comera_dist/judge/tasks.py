"""The results of a trained decoder on tasks of lm_eval (https://github.com/EleutherAI/lm-evaluation-harness)."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from comera_dist.errors import ConfigError, first_line
from comera_dist.generate.writer import writer_of
from comera_dist.run.trained import load_trained
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together

if TYPE_CHECKING:  # it imports lm_eval
    from comera_dist.judge.harness import DecoderLM

SUITE = Path(__file__).parent / "suite"  # tasks of this package, whose items are made up and need no download
BOOTSTRAPS = 1000  # chosen: resamples for the standard error of a metric that has no formula for it


def judge_on_tasks(
    run: Path,
    processes: Processes,
    step: int | None,
    names: Sequence[str],
    folder: Path | None,
    max_items: int | None,
    shots: int | None = None,
) -> dict[str, Any]:
    """The metrics of each task for a run's checkpoint (None: the newest), as `tasks`: {task: {metric: number}}.

    Collective; only the first process gets the metrics. Tasks are those of lm_eval, those of SUITE, and those whose
    YAML files are in `folder`. At most `max_items` items of each task are read, each after `shots` solved examples
    (None: as many as the task itself says). Besides metrics, a task has its `items`, and if there are any, its `shots`
    and the number of its items whose prompts were `truncated`. Raises ConfigError for tasks that cannot be loaded or
    carried out, and the errors of `writer_of`.
    """
    trained = load_trained(run, processes, step)
    tasks = together(lambda: _load(list(names), folder), processes)
    from lm_eval.evaluator import evaluate

    from comera_dist.judge.harness import DecoderLM
    from comera_dist.judge.shots import set_shots

    model = DecoderLM(writer_of(trained, run), trained.config.train.precision, processes)
    set_shots(tasks["tasks"].values(), shots, processes)
    os.environ["DISABLE_MULTIPROC"] = "1"  # otherwise lm_eval resamples in processes that are forked from this one
    try:
        results = evaluate(model, tasks, max_items, bootstrap_iters=BOOTSTRAPS, log_samples=False)
    except (ValueError, TypeError, LookupError, TemplateError) as error:  # of templates, or lm_eval's refusals
        raise ConfigError(
            f"lm_eval cannot carry out the tasks {', '.join(names)} ({type(error).__name__}: {first_line(error)}); "
            "mend their YAML files, or name other tasks"
        ) from error
    truncated = processes.gather({name: _truncated(task, model) for name, task in tasks["tasks"].items()})
    figures = _figures(results, sum(map(Counter, truncated), Counter())) if processes.is_first else {}
    return {"run": str(run), "step": trained.checkpoint.manifest["step"], "tasks": figures}


def _load(names: list[str], folder: Path | None) -> Any:
    """The tasks, as lm_eval's evaluator takes them."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise ConfigError(
            "--tasks needs the package lm_eval, which is not installed; run `pip install 'comera-dist[judge]'`"
        ) from error
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--tasks-from {folder} is not a folder; name one with YAML files of tasks")
    # Of each task whose items a function makes, lm_eval warns of options that we do not have.
    logging.getLogger("lm_eval.api.task").addFilter(lambda record: "--metadata" not in record.getMessage())
    folders = [SUITE] if folder is None else [SUITE, folder]
    manager = TaskManager(include_path=folders, include_defaults=False)
    if not set(names) <= set(manager.all_tasks):
        manager = TaskManager(include_path=folders)  # lm_eval's own list is long, and reading it takes many seconds
    unknown = [name for name in names if name not in manager.all_tasks]
    if unknown:
        raise ConfigError(
            f"lm_eval knows no task {unknown[0]!r}; `lm-eval ls tasks` lists its tasks, and --tasks-from names a "
            "folder of yours"
        )
    try:
        return manager.load(names)
    except Exception as error:  # a task runs code of its own, and data sets are loaded by any library
        raise ConfigError(
            f"the tasks {', '.join(names)} cannot be loaded ({type(error).__name__}: {first_line(error)}); mend "
            "their files, see that the network leads to their data, or name other tasks"
        ) from error


def _truncated(task: Any, model: "DecoderLM") -> int:
    """Items of this process with a prompt whose beginning was left out."""
    return len({request.doc_id for request in task.instances if model.has_truncated(request)})


def _figures(results: Any, truncated: Counter[str]) -> dict[str, dict[str, float]]:
    """The number of items and each metric, with its standard error where there is one, of each task and group."""
    found: dict[str, dict[str, float]] = {}
    for task, metrics in results["results"].items():
        items = results["n-samples"].get(task)
        found[task] = {"items": items["effective"]} if items else {}
        counts = {"shots": results["n-shot"].get(task), "truncated": truncated[task]}
        found[task] |= {name: count for name, count in counts.items() if count}
        for name, value in metrics.items():
            if isinstance(value, int | float) and "," in name:
                metric, _, answers = name.partition(",")  # a task may read answers in several ways
                found[task][metric if answers == "none" else f"{metric} {answers}"] = value
    return found
