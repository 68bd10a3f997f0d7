"""Which blocks of a model share matrices: those whose layers of one name have one plan in the format `shared`."""

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.formats.shared import SharedPlan
from comera_dist.models.base import IN_BLOCK

if TYPE_CHECKING:
    from torch import nn


def placed(plan: Plan) -> Plan:
    """The plan in which each layer that shares has its number among those that share with it.

    Raises ConfigError for such a layer outside of blocks, and for more matrices than blocks.
    """
    found = dict(plan)
    for group in sharing(plan):
        name, layer = next(iter(group.items()))
        if not IN_BLOCK.search(name):
            raise ConfigError(
                f"{name} has the format {layer.tag}, but only the blocks of a model share matrices; choose another "
                f"format for it"
            )
        if layer.matrices > len(group):
            raise ConfigError(
                f"{name} shares {layer.matrices} matrices with {len(group)} blocks in all, expected at most one for "
                f"each block; lower tensor.{layer.tag}.matrices, or the number in the rule of tensor.layers"
            )
        found |= {name: replace(layer, place=place) for place, (name, layer) in enumerate(group.items(), 1)}
    return found


def sharing(plan: Plan) -> list[dict[str, SharedPlan]]:
    """The groups of layers that share matrices with each other, by name and in the order of their blocks."""
    groups: dict[tuple[str, SharedPlan], dict[str, SharedPlan]] = defaultdict(dict)
    for name, layer in plan.items():
        if isinstance(layer, SharedPlan):
            groups[IN_BLOCK.sub(".", name), replace(layer, place=None)][name] = layer
    return list(groups.values())


def share_matrices(model: "nn.Module", plan: Plan) -> None:
    """Gives each layer of the model that shares the matrices of its group."""
    groups = sharing(plan)
    if not groups:
        return
    from comera_dist.formats.shared_layers import SharedLinear

    for group in groups:
        layers = [layer for name in group if isinstance(layer := model.get_submodule(name), SharedLinear)]
        matrices = [layer.shared for layer in layers if layer.shared is not None]
        for layer in layers:
            layer.share(matrices)
