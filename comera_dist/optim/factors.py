"""The factors of a model's block layers, as the batches of matrices that a matrix optimizer steps on."""

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
    dense_size: tuple[int, int]  # of the layer's weight


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
