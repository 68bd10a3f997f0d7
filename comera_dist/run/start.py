"""The start of a run: random weights, its own newest checkpoint, or the weights of another run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comera_dist.checkpoints.read import Checkpoint, find_checkpoint
from comera_dist.config.ranks_section import Ranks
from comera_dist.config.tree import Config
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import CheckpointError
from comera_dist.formats.base import Resizable
from comera_dist.formats.plan import Plan, read_plan
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.limits import least_ranks
from comera_dist.run.compatibility import check_same_model, check_same_run, check_vocabulary
from comera_dist.runtime.processes import Processes


@dataclass(frozen=True)
class Start:
    """`planned` is the model at step 0 of the run, `plan` the one to build now.

    `own` is the run's checkpoint to resume from, `other` another run's checkpoint with the first weights, in place of
    those of the plan `configured`.
    """

    planned: Plan
    plan: Plan
    own: Checkpoint | None = None
    other: Checkpoint | None = None
    configured: Plan | None = None

    @property
    def weights(self) -> Checkpoint | None:
        """The checkpoint that holds the weights."""
        return self.own or self.other


def find_start(
    config: Config, task: Task[Any] | Mixture, configure: Callable[[], Plan], checkpoints: Path, processes: Processes
) -> Start:
    """The start of the run of `config` with its `task`. Collective.

    `configure` plans the model that the configuration describes. A run that goes on has its plan already, also where a
    budget could not be met on the present processes. Raises CheckpointError, DataError for data that do not fit, and
    ConfigError for a plan that is impossible.
    """
    own = find_checkpoint(checkpoints, processes)
    if own is not None:
        if own.manifest["step"] == 0:
            raise CheckpointError(
                f"{own.folder} holds weights without an optimizer's state, so no run can resume from it; give this run "
                f"another run.name and set run.start_from={config.run_directory}"
            )
        check_same_run(config, own)
        planned = read_plan(own.run["planned"]) if "planned" in own.run else configure()
        return Start(planned, read_plan(own.run["plan"]), own=own)
    configured = configure()
    if config.run.start_from is None:
        return Start(configured, configured)
    step = config.run.start_step
    other = find_checkpoint(config.run.start_from / "checkpoints", processes, step)
    if other is None:
        wanted = "" if step is None else f" of step {step}"
        raise CheckpointError(
            f"run.start_from = {config.run.start_from} has no checkpoint{wanted}; name one that a run has saved"
        )
    return start_from(other, config, task, configured, processes)


def start_from(
    other: Checkpoint, config: Config, task: Task[Any] | Mixture, configured: Plan, processes: Processes
) -> Start:
    """The start with the weights of another run. Raises CheckpointError and DataError if they do not fit."""
    plan = read_plan(other.run["plan"])
    check_same_model(config, configured, plan, other)
    check_vocabulary(other, task, config.data.described, processes)
    return Start(plan, plan, other=other, configured=configured)


def remarks(config: Config, start: Start, of_tensor: list[str]) -> list[str]:
    """One sentence for each part of the configuration that does not hold for the model of `start`.

    `of_tensor` are sentences on keys that plan matrices; they count if the run begins with random weights.
    """
    if start.own is not None:  # said at the first start
        return []
    of_matrices = of_tensor if start.configured is None else _of_other_matrices(config, start.plan, start.configured)
    return of_matrices + _of_ranks(config.ranks, start.plan)


def _of_ranks(ranks: Ranks, plan: Plan) -> list[str]:
    """On ranks that are to adapt, of which none may be cut."""
    if not ranks.adapt:
        return []
    layout = GateLayout.of({name: layer for name, layer in plan.items() if isinstance(layer, Resizable)}, ranks.layers)
    ranks_B = layout.ranks_B[layout.adapted_B]
    if (ranks_B > least_ranks(layout, ranks)[layout.adapted_B]).any():
        return []
    return [
        f"ranks.min_rank = {ranks.min_rank} lets no rank be cut: the largest of the layers that adapt is "
        f"{int(ranks_B.max())}."
    ]


def _of_other_matrices(config: Config, plan: Plan, configured: Plan) -> list[str]:
    other = [name for name, layer in plan.items() if layer != configured[name]]
    if not other:
        return []
    there, here = plan[other[0]], configured[other[0]]
    return [
        f"{len(other)} of {len(configured)} matrices are as in run.start_from = {config.run.start_from} and not as "
        f"model.format and tensor say, e.g. {other[0]}: {there.tag} with {there.parameters:,} numbers, not {here.tag} "
        f"with {here.parameters:,}."
    ]
