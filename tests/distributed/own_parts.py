"""Runs whose model, task, optimizer and observers are handed in by the caller."""

import shutil
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from listening import Listening
from torch import Tensor, nn
from torch.nn import functional

from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.data.batches import FILLER, TrainBatches
from comera_dist.data.contents import Contents
from comera_dist.errors import ComeraError
from comera_dist.models.family import build_model
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.run.train import train

LR = 0.02
ROWS = {"train": 64, "valid": 20}


class Points(NamedTuple):
    x_BN: Tensor
    side_B: Tensor


class PointRows:
    """Points whose class is the sign of the sum of their coordinates."""

    def __init__(self, split: str):
        generator = torch.Generator().manual_seed(len(split))
        self._x_RN = torch.randn(ROWS[split], 4, generator=generator)
        self._side_R = (self._x_RN.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self._side_R)

    def batch(self, row_B: np.ndarray, draw_B: np.ndarray) -> Points:
        rows = torch.from_numpy(np.maximum(row_B, 0))
        counts_B = torch.from_numpy(row_B != FILLER)
        return Points(self._x_RN[rows], self._side_R[rows].where(counts_B, IGNORED_TARGET))


class PointTask:
    facts = None
    fingerprint = "points"
    contents = Contents({}, remedy="")
    vocabulary: ClassVar = {}

    def train(self) -> PointRows:
        return PointRows("train")

    def held_out(self, name: str) -> PointRows:
        return PointRows(name)

    def figures(self, measured: dict, name: str) -> dict[str, float | None]:
        return {"loss": measured["loss"] / measured["targets"]}


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 0.1)

    def forward(self, x_BN: Tensor, side_B: Tensor) -> Tensor:
        return functional.cross_entropy(self.layer(x_BN), side_B, reduction="sum")

    def measure(self, x_BN: Tensor, side_B: Tensor) -> dict[str, Tensor]:
        return {"loss": self(x_BN, side_B)}


def own_config(directory: str, name: str, *overrides: str) -> Config:
    # A row of a DLRM counts as one, and its learning rate is constant here.
    shared = ["model.kind=dlrm", "train.batch_size=8", "train.steps=6", "log.every=1", "eval.every=0"]
    shared += [
        "log.plots=false",
        "wandb.mode=disabled",
        "schedule.kind=constant",
        "schedule.warmup_steps=0",
        "train.grad_clip=0",
    ]
    return read_config(None, [*shared, f"run.directory={directory}", f"run.name={name}", *overrides])


OPTIMIZERS = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=LR),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=LR),
}


def train_own(processes, directory: str, name: str, overrides: list[str], kind: str | None = "adam") -> list[str]:
    """Trains with the parts above; returns the kinds of records that an observer got. Another observer always fails."""
    seen, optimizer = [], OPTIMIZERS.get(kind)
    train(
        own_config(directory, name, *overrides),
        processes,
        model=Line(),
        task=PointTask(),
        optimizer=optimizer,
        observers=[lambda record: 1 / 0, lambda record: seen.append(type(record).__name__)],
    )
    return seen


def said_of_own_model(processes, directory: str) -> list[str]:
    """What a run says about recomputing the blocks of a module without any, and about its products in FP8."""
    listening, rows = Listening(processes), ["model.kind=decoder", "data.seq_len=1", "train.steps=1"]
    config = own_config(directory, "kept", *rows, "train.activation_checkpointing=block", "train.precision=fp8")
    train(config, listening, model=Line(), task=PointTask())
    return [line for line in listening.said if line.startswith("train.")]


def plain_losses(directory: str, steps: int, kind: str = "adam") -> list[float]:
    """Mean loss of each step of the same training in a plain torch loop."""
    config, model = own_config(directory, "plain"), Line()
    optimizer = OPTIMIZERS[kind](model)
    batches = TrainBatches(PointRows("train"), "points", 1, 8, 8, 0, 1, seed=config.run.seed)
    found = []
    for step in range(steps):
        (batch,) = batches.step(8 * step)
        optimizer.zero_grad()
        loss = model(*batch) / 8
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


class Smoothed(Line):
    """Has running statistics, which a checkpoint would not hold."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x_BN: Tensor, side_B: Tensor) -> Tensor:
        return super().forward(self.norm(x_BN), side_B)


def frozen() -> Line:
    model = Line()
    model.layer.bias.requires_grad_(False)
    return model


def refused_parts(processes, directory: str) -> list[str]:
    """The errors of modules and optimizers that a checkpoint would not hold as they are, at ZeRO stages 0 and 3."""
    of_weight = {"optimizer": lambda model: torch.optim.SGD([model.layer.weight], lr=LR)}
    cases = {"bf16": Line().bfloat16, "frozen": frozen, "part": Line, "statistics": Smoothed}
    cases["plain"] = lambda: nn.Linear(4, 2)
    said = []
    for stage, (name, make) in product((0, 3), cases.items()):
        config = own_config(directory, f"{name}_{stage}", f"train.zero_stage={stage}")
        try:
            train(config, processes, model=make(), task=PointTask(), **(of_weight if name == "part" else {}))
        except ComeraError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def tidied_run(processes, directory: str) -> list[str]:
    """What a run of three steps without its checkpoints says to the same command, and to one that makes it longer."""
    three, six = (own_config(directory, "tidied", f"train.steps={steps}") for steps in (3, 6))
    listening, parts = Listening(processes), {"task": PointTask()}
    train(three, processes, model=Line(), **parts)
    shutil.rmtree(three.run_directory / "checkpoints")
    train(three, listening, model=Line(), **parts)
    try:
        train(six, processes, model=Line(), **parts)
    except ComeraError as error:
        listening.said.append(f"{type(error).__name__}: {error}")
    return [listening.said[0], listening.said[-1]]


def adapt_own(processes, directory: str) -> list[str]:
    """The errors of rank adaptation with a module and with an optimizer of the caller."""
    config, said = own_config(directory, "adapting", "ranks.adapt=true", "ranks.sync_every=2"), []
    for parts in ({"model": Line()}, {"optimizer": OPTIMIZERS["adam"]}):
        try:
            train(config, processes, task=PointTask(), **parts)
        except ComeraError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def built_models(processes, overrides: list[str]) -> list[tuple[bool, int]]:
    """For each model that a run's factory built: whether its weights were drawn, and its number of parameters."""
    config, built = read_config(None, overrides), []

    def build(plan, generator):
        model = build_model(config.model, plan, generator)
        built.append((generator is not None, sum(parameter.numel() for parameter in model.parameters())))
        return model

    train(config, processes, model=build)
    return built
