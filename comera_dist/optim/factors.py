"""The factors of a model's block layers, as the batches of matrices that a matrix optimizer steps on."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from comera_dist.formats.base import Unfoldings
from comera_dist.models.base import IN_BLOCK


@dataclass(frozen=True)
class Factor:
    """A parameter of the layer `layer` as n matrices R x C."""

    layer: str
    size: tuple[int, int, int]  # n, R, C
    count: int  # factors of the layer's weight
    dense_size: tuple[int, int]  # of the layer's weight: outputs, inputs


def factors_of(model: nn.Module) -> dict[nn.Parameter, Factor]:
    """All factors of linear layers in blocks; the weight of a dense layer is its only one."""
    found = {}
    for path, module in model.named_modules():
        plan = getattr(module, "plan", None)
        if not IN_BLOCK.search(path):
            continue
        if isinstance(plan, Unfoldings) and not plan.is_embedding:
            sizes = plan.unfoldings
            for name, size in sizes.items():
                found[module.get_parameter(name)] = Factor(path, size, len(sizes), plan.dense_size)
        elif isinstance(module, nn.Linear):
            rows, columns = module.weight.shape
            found[module.weight] = Factor(path, (1, rows, columns), 1, (rows, columns))
    return found


def low_rank_parameters(model: nn.Module) -> dict[nn.Parameter, tuple[str, str]]:
    """Layer and name of core_1, gate_1 and core_2, for linear layers in blocks that are `Unfoldings.is_low_rank`."""
    found: dict[nn.Parameter, tuple[str, str]] = {}
    for path, module in model.named_modules():
        plan = getattr(module, "plan", None)
        if IN_BLOCK.search(path) and isinstance(plan, Unfoldings) and plan.is_low_rank and not plan.is_embedding:
            found |= {module.get_parameter(name): (path, name) for name in plan.tensors}
    return found


def fan_in_rates(factors: Mapping[nn.Parameter, Factor]) -> dict[nn.Parameter, float]:
    """AdamW's learning rate of each core as a multiple of a dense weight's: D_in / (R · K).

    Dense weights have no entry. R is the number of inputs that the core's map sums over, D_in that of the layer, K the
    number of its cores. A core's entries may move as far as those of a dense weight with R inputs, and the cores share
    the change of the weight. Structure-aware μP for Adam (Qiu et al. 2024, "Compute Better Spent", arXiv 2406.06248).
    """
    cores = {parameter: factor for parameter, factor in factors.items() if factor.count > 1}
    return {parameter: f.dense_size[1] / (f.size[1] * f.count) for parameter, f in cores.items()}
