"""What a run starts from: nothing, its own newest checkpoint, or the weights of another run."""

from dataclasses import dataclass
from pathlib import Path

from comera_dist.checkpoints.read import Checkpoint, find_checkpoint
from comera_dist.config.tree import Config
from comera_dist.data.tasks import Task
from comera_dist.errors import CheckpointError
from comera_dist.formats.plan import Plan, matrix_size, read_plan
from comera_dist.models.family import kind_of
from comera_dist.run.resume_checks import check_same_run
from comera_dist.run.same_vocabulary import check_vocabulary
from comera_dist.runtime.processes import Processes


@dataclass(frozen=True)
class Start:
    """`planned` is the model at step 0 of the run, `plan` the one to build now.

    `own` is the run's checkpoint to go on from, `other` another run's whose weights it begins with.
    """

    planned: Plan
    plan: Plan
    own: Checkpoint | None = None
    other: Checkpoint | None = None


def find_start(config: Config, task: Task, configured: Plan, checkpoints: Path, processes: Processes) -> Start:
    """`task` and `configured` plan are those of `config`. Collective. Raises CheckpointError, and DataError for data
    that do not fit."""
    own = find_checkpoint(checkpoints, processes)
    if own is not None:
        check_same_run(config, own)
        planned = read_plan(own.run["planned"]) if "planned" in own.run else configured
        return Start(planned, read_plan(own.run["plan"]), own=own)
    if config.run.start_from is None:
        return Start(configured, configured)
    other = find_checkpoint(config.run.start_from / "checkpoints", processes)
    if other is None:
        raise CheckpointError(
            f"run.start_from = {config.run.start_from} has no checkpoint; name a run that has saved one"
        )
    return start_from(other, config, task, configured, processes)


def start_from(other: Checkpoint, config: Config, task: Task, configured: Plan, processes: Processes) -> Start:
    """The start of a run with the weights of another run. Raises CheckpointError and DataError if they do not fit."""
    plan = read_plan(other.run["plan"])
    _check_same_model(config, configured, plan, other)
    check_vocabulary(other, task, config.data.corpus, processes)
    return Start(plan, plan, other=other)


def _check_same_model(config: Config, configured: Plan, plan: Plan, checkpoint: Checkpoint) -> None:
    """Another run's ranks, formats and sequence length may differ; the function of its weights may not."""
    now, free = config.model.model_dump(mode="json"), kind_of(config.model).free_keys
    saved = type(config.model)().model_dump(mode="json") | checkpoint.run["config"].get("model", {})
    found = {f"model.{key}": (value, saved[key]) for key, value in now.items() if key not in free}
    found |= {name: (matrix_size(configured, name), matrix_size(plan, name)) for name in configured | plan}
    for name, (here, there) in found.items():
        if here != there:
            raise CheckpointError(
                f"{name} is {here} here and {there} in {checkpoint.folder}; set model and data as in "
                f"run.start_from = {config.run.start_from}"
            )
