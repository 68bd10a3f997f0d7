"""A trained model, read from the directory of its run. Imports no DeepSpeed and needs no process group."""

import os
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from comera_dist.checkpoints.read import Checkpoint, find_checkpoint
from comera_dist.config.reader import read_own_config
from comera_dist.config.tree import Config
from comera_dist.errors import CheckpointError
from comera_dist.formats.plan import Plan, read_plan
from comera_dist.models.family import build_model
from comera_dist.run.compatibility import check_same
from comera_dist.runtime.processes import Processes, alone


@dataclass(frozen=True)
class Trained:
    """A model on the device of this process, with the weights of `checkpoint` and the configuration of its run."""

    config: Config
    plan: Plan
    checkpoint: Checkpoint
    model: nn.Module

    @property
    def micro_batch(self) -> int:
        """Rows of a forward pass of the training, whose processes wrote a file of the checkpoint each."""
        return self.config.forward_rows(len(self.checkpoint.manifest["files"]))


def load_trained(
    run: Path | str, processes: Processes | None = None, step: int | None = None, model: nn.Module | None = None
) -> Trained:
    """The model of a run's newest undamaged checkpoint, or of the checkpoint of `step`, in evaluation mode.

    `processes` (default: this one alone) share the work of hashing the files. Collective. `model` takes the weights in
    place of the configured module: hand it in if the run was trained with a module of yours. Raises CheckpointError.
    """
    run, processes = Path(run), processes or alone()
    if not os.path.isfile(run / "config.yaml"):  # unlike Path.is_file it raises nothing for a name that cannot be
        raise CheckpointError(f"{run} has no config.yaml; name the directory of a run, e.g. runs/quickstart")
    config = read_own_config(run / "config.yaml")
    checkpoint = find_checkpoint(run / "checkpoints", processes, step)
    if checkpoint is None:
        wanted = "" if step is None else f" of step {step}"
        raise CheckpointError(f"{run} has no checkpoint{wanted}; train it first, or name another one")
    check_same(("model.",), config, checkpoint)  # somebody may have edited config.yaml
    plan = read_plan(checkpoint.run["plan"])
    if model is None:
        if not plan:
            raise CheckpointError(f"{run} was trained with a module of the caller's; hand that in as `model`")
        model = build_model(config.model, plan, generator=None)
    checkpoint.load_weights(model)
    return Trained(config, plan, checkpoint, model.to(processes.device).eval())
