"""Forward passes of a model: its compute precision, and its figures over the batches of all processes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from comera_dist.ops.products import fp8_products
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.runtime.endings import alive
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import iterate_together


class AutocastModel(nn.Module):
    """Runs the forward of `model` in the compute precision; parameters, gradients and moments stay fp32."""

    def __init__(self, model: nn.Module, precision: str):
        super().__init__()
        self.model: Any = model  # has a function `measure`, which nn.Module does not declare
        self.precision = precision

    def forward(self, *batch: Tensor) -> Any:
        """The summed loss of a batch (0-dimensional) in training mode, otherwise the figures of `model.measure`."""
        # Autocast sits inside the module that DeepSpeed wraps, because DeepSpeed's own `torch_autocast` would also
        # reduce dense gradients in bf16, and its `bf16` mode rounds the initial weights.
        with compute_precision(batch[0].device, self.precision):
            return self.model(*batch) if self.training else self.model.measure(*batch)


@contextmanager
def compute_precision(device: torch.device, precision: str) -> Iterator[None]:
    """Within this block products are computed in `precision`, "fp32", "bf16" or "fp8"."""
    low = torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision != "fp32")
    with low, fp8_products(precision == "fp8"):
        yield


@torch.no_grad()
def measure(
    figures_of: Callable[..., dict[str, Tensor]], batches: Iterable[NamedTuple], processes: Processes
) -> dict[str, float | Tensor]:
    """Figures of all batches by name: 0-dimensional ones summed in float64, vectors concatenated on the CPU.

    `figures_of` takes the tensors of a batch. The figure `targets`, the number of targets that count, is added.
    Collective, with equally many batches on each process. DataError on all processes if one cannot read a batch.
    """
    sums: dict[str, Tensor] = {}
    vectors: dict[str, list[Tensor]] = {}
    for batch in iterate_together(batches, processes):
        alive()
        figures = figures_of(*(tensor.to(processes.device) for tensor in batch))
        for name, figure in (figures | {"targets": torch.tensor(count_targets(batch))}).items():
            if figure.ndim:
                vectors.setdefault(name, []).append(figure.cpu())
            else:
                sums[name] = sums.get(name, 0.0) + figure.double()
    totals = processes.sum([float(figure) for figure in sums.values()])
    shares = processes.gather({name: torch.cat(parts) for name, parts in vectors.items()}) if vectors else []
    concatenated = {name: torch.cat([share[name] for share in shares]) for name in vectors}
    return dict(zip(sums, totals, strict=True)) | concatenated


def count_targets(batch: NamedTuple) -> int:
    """How many targets count towards the loss; targets are the last tensor of every batch."""
    return int((batch[-1] != IGNORED_TARGET).sum())
