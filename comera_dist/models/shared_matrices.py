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
    for names in sharing(plan):
        for place, name in enumerate(names, 1):
            layer = plan[name]
            assert isinstance(layer, SharedPlan)
            if not IN_BLOCK.search(name):
                raise ConfigError(
                    f"{name} has the format {layer.tag}, but only the blocks of a model share matrices; choose another "
                    f"format for it"
                )
            if layer.matrices > len(names):
                raise ConfigError(
                    f"{name} shares {layer.matrices} matrices with {len(names)} blocks in all, expected at most one "
                    f"for each block; lower tensor.{layer.tag}.matrices"
                )
            found[name] = replace(layer, place=place)
    return found


def sharing(plan: Plan) -> list[list[str]]:
    """The names of the layers that share matrices with each other, in the order of their blocks."""
    groups: dict[tuple[str, SharedPlan], list[str]] = defaultdict(list)
    for name, layer in plan.items():
        if isinstance(layer, SharedPlan):
            groups[IN_BLOCK.sub(".", name), replace(layer, place=None)].append(name)
    return list(groups.values())


def share_matrices(model: "nn.Module", plan: Plan) -> None:
    """Gives each layer of the model that shares the matrices of its group."""
    groups = sharing(plan)
    if not groups:
        return
    from comera_dist.formats.shared_layers import SharedLinear

    for names in groups:
        layers = [layer for name in names if isinstance(layer := model.get_submodule(name), SharedLinear)]
        matrices = [layer.shared for layer in layers if layer.shared is not None]
        for layer in layers:
            layer.share(matrices)
