"""The limits that the section `ranks` sets to every policy: which indices may be cut, and how far bonds may grow.

Shapes: G gates, B bonds, as in layout.py.
"""

from dataclasses import replace
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from comera_dist.config.ranks_section import Ranks
from comera_dist.errors import ConfigError
from comera_dist.models.base import IN_BLOCK
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Decision


def least_ranks(layout: GateLayout, ranks: Ranks) -> Tensor:
    """The smallest rank (B,) that each bond may be cut to: 0 in a removable layer, else `ranks.min_rank`."""
    is_removable = [_matches(name, ranks.removable) for name, _ in layout.bond_names]
    return torch.where(torch.tensor(is_removable, dtype=torch.bool), 0, ranks.min_rank)


def may_go(layout: GateLayout, importance_G: Tensor, ranks: Ranks) -> Tensor:
    """Indices (G,) of adapted layers, except for the most important `least_ranks` of each bond."""
    by_importance = importance_G.argsort(descending=True, stable=True)
    order = by_importance[layout.bond_G[by_importance].argsort(stable=True)]
    place_G = torch.empty_like(order)
    first_B = layout.ranks_B.cumsum(0) - layout.ranks_B
    place_G[order] = torch.arange(layout.num_gates) - first_B[layout.bond_G[order]]
    return (place_G >= least_ranks(layout, ranks)[layout.bond_G]) & layout.adapted_B[layout.bond_G]


def within(layout: GateLayout, may_go_G: Tensor, may_grow: bool, decision: Decision) -> Decision:
    """The decision without cuts of indices that may not go and without growth beyond what the cores can fill."""
    cut_G = decision.cut_G & may_go_G
    ranks_B = layout.after_cut(cut_G)
    room_B = layout.room(ranks_B) * (layout.adapted_B & (ranks_B > 0) & may_grow)
    return replace(decision, cut_G=cut_G, added_B=decision.added_B.clamp_min(0).minimum(room_B))


def check_patterns(layout: GateLayout, ranks: Ranks) -> None:
    """ConfigError if `ranks.layers` or `ranks.removable` match no layer, or a layer that may not be removed."""
    names = [name for name, shape in layout.shapes.items() if shape.bonds]
    if not names:
        raise ConfigError(
            "ranks.adapt = true and no layer has ranks that can change; set model.format=tensor or ranks.adapt=false"
        )
    for key in ("layers", "removable"):
        for pattern in getattr(ranks, key):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"ranks.{key}: the pattern {pattern!r} matches no layer with ranks; names look like {names[0]}"
                )
    kept = [name for name in names if not IN_BLOCK.search(name) and _matches(name, ranks.removable)]
    if kept:
        raise ConfigError(
            f"ranks.removable matches {kept[0]}, which no model can do without; match layers of blocks only, whose "
            f"names have a number after `layer.` or `layers.`"
        )
    fixed = [pattern for pattern in ranks.removable if not any(_removes(name, pattern, ranks) for name in names)]
    if fixed:
        raise ConfigError(
            f"ranks.removable: the pattern {fixed[0]!r} matches no layer of ranks.layers, whose ranks alone "
            f"change; add it there, or remove it"
        )


def _removes(name: str, pattern: str, ranks: Ranks) -> bool:
    return fnmatchcase(name, pattern) and _matches(name, ranks.layers)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
