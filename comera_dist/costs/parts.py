"""How many numbers each part of a model stores."""

import re
from collections import Counter

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.family import kind_of


def stored_parts(config: Config, plan: Plan) -> dict[str, int]:
    """Stored numbers of the whole model by part: tables, matrices with their gates and biases, and all else."""
    kind, parts = kind_of(config.model), Counter[str]()
    for name, layer in plan.items():
        group = _group(name)
        if layer.is_embedding:
            parts[group] += layer.parameters
        else:
            parts[f"{group}: matrices"] += layer.num_parameters
            parts[f"{group}: gates"] += layer.num_gates
            parts[f"{group}: biases"] += layer.outputs * kind.has_biases
    parts.update(kind.other_parts(config.model, plan))
    return {part: numbers for part, numbers in parts.items() if numbers}


def _group(name: str) -> str:
    """`blocks` for a layer of a block; otherwise the module's own name without its number."""
    return "blocks" if IN_BLOCK.search(name) else re.sub(r"\.(\d+|dense)$", "", name).rpartition(".")[2]
