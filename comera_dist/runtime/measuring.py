"""Figures of a model over the batches of all processes."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.runtime.endings import alive
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import iterate_together


@torch.no_grad()
def measure(
    figures_of: Callable[..., dict[str, Tensor]], batches: Iterable[NamedTuple], processes: Processes
) -> dict[str, float | Tensor]:
    """What `figures_of` says of every batch, summed where it is 0-dimensional and put together where it is a vector.

    `targets` is how many count. Sums are float64, vectors lie on the CPU. Collective: as many batches on each process.
    DataError on all processes when one cannot read a batch.
    """
    sums: dict[str, Tensor] = {}
    vectors: dict[str, list[Tensor]] = {}
    for batch in iterate_together(batches, processes):
        alive()
        figures = figures_of(*on_device(batch, processes.device))
        for name, figure in (figures | {"targets": torch.tensor(count_targets(batch))}).items():
            if figure.ndim:
                vectors.setdefault(name, []).append(figure.cpu())
            else:
                sums[name] = sums.get(name, 0.0) + figure.double()
    totals = processes.sum([float(figure) for figure in sums.values()])
    shares = processes.gather({name: torch.cat(parts) for name, parts in vectors.items()}) if vectors else []
    together = {name: torch.cat([share[name] for share in shares]) for name in vectors}
    return dict(zip(sums, totals, strict=True)) | together


def on_device(batch: NamedTuple, device: torch.device) -> list[Tensor]:
    return [tensor.to(device) for tensor in batch]


def count_targets(batch: NamedTuple) -> int:
    """Targets are the last tensor of every batch."""
    return int((batch[-1] != IGNORED_TARGET).sum())
