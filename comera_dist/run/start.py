"""What a run starts from: nothing, its own newest checkpoint, or the weights of another run."""

from dataclasses import dataclass
from pathlib import Path

import torch

from comera_dist.checkpoints.read import Checkpoint, find_checkpoint
from comera_dist.config.tree import Config
from comera_dist.data.tasks import Task
from comera_dist.errors import CheckpointError
from comera_dist.formats.plan import Plan, read_plan
from comera_dist.models.family import build_model, kind_of, plan_model
from comera_dist.run.resume_checks import changes_line, check_same_run
from comera_dist.run.same_vocabulary import check_vocabulary
from comera_dist.runtime.engine import Engine
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


def find_start(config: Config, task: Task, checkpoints: Path, processes: Processes) -> Start:
    """`task` is that of `config`. Collective. Raises CheckpointError, and DataError for data that do not fit."""
    configured = plan_model(config, task.facts)
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
    plan = read_plan(other.run["plan"])
    _check_same_model(config, configured, plan, other)
    check_vocabulary(other, task, config.data.corpus, processes)
    return Start(plan, plan, other=other)


def build_engine(config: Config, start: Start, processes: Processes) -> Engine:
    """The model of `start` on all processes, with the optimizer's state where the run goes on. Collective."""
    weights = start.own or start.other
    if weights is None:
        model = build_model(config.model, start.plan, torch.Generator().manual_seed(config.run.seed))
        return Engine(model, config, processes)
    model = build_model(config.model, start.plan, generator=None)
    weights.load_weights(model)
    engine = Engine(model, config, processes)
    if start.own is not None:
        engine.restore_moments(start.own.moments(), start.own.optimizer_step, start.own.gate_step)
    processes.say(f"{'Resumed from' if start.own else 'Weights from'} {weights.folder}.")
    if start.own is not None and (line := changes_line(config, start.own)) is not None:
        processes.say(line)
    return engine


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


def matrix_size(plan: Plan, name: str) -> str:
    """Inputs and outputs of a matrix in words."""
    return f"{plan[name].inputs} → {plan[name].outputs}" if name in plan else "missing"
