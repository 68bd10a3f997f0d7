"""What a run starts from: nothing, its own newest checkpoint, or the weights of another run."""

from dataclasses import dataclass
from pathlib import Path

import torch

from comera_dist.config import Config
from comera_dist.errors import CheckpointError
from comera_dist.models.family import build_model
from comera_dist.models.plan import LayerPlan, Plan
from comera_dist.runtime.checkpoint import Checkpoint, find_checkpoint
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


def find_start(config: Config, configured: Plan, checkpoints: Path, processes: Processes) -> Start:
    """`configured` is the plan that the configuration asks for. Collective. Raises CheckpointError."""
    own = find_checkpoint(checkpoints, processes)
    if own is not None:
        _check_same_run(config, own)
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
    return engine


def write_plan(plan: Plan) -> dict:
    """The plan as JSON."""
    return {name: layer.to_json() for name, layer in plan.items()}


def read_plan(record: dict) -> Plan:
    return {name: LayerPlan.from_json(layer) for name, layer in record.items()}


def _check_same_run(config: Config, checkpoint: Checkpoint) -> None:
    for section in ("model", "tensor", "ranks"):
        now = getattr(config, section)
        # A checkpoint of an earlier version lacks what did not exist then, and was trained as the defaults say.
        saved = type(now)().model_dump(mode="json") | checkpoint.run["config"].get(section, {})
        for key, value in now.model_dump(mode="json").items():
            if value != saved[key]:
                raise CheckpointError(
                    f"{section}.{key} = {value} and the run's checkpoint was trained with {saved[key]}; "
                    f"set it back, or give the changed model another run.name"
                )


def _check_same_model(config: Config, configured: Plan, plan: Plan, checkpoint: Checkpoint) -> None:
    """Another run's ranks, formats and sequence length may differ; the matrices that they stand for may not."""
    sizes = {name: (layer.inputs, layer.outputs) for name, layer in plan.items()}
    for name, layer in configured.items():
        if sizes.get(name) != (layer.inputs, layer.outputs):
            raise CheckpointError(
                f"{name} is {layer.inputs} → {layer.outputs} here and {sizes.get(name, 'missing')} in "
                f"{checkpoint.folder}; set model and data as in run.start_from = {config.run.start_from}"
            )
