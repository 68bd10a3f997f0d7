"""How many numbers each part of a model stores."""

import re

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.family import kind_of


def stored_parts(config: Config, plan: Plan) -> dict[str, int]:
    """Stored numbers of the whole model by part: tables, matrices with their gates and biases, and all else."""
    kind = kind_of(config.model)
    parts: dict[str, int] = {}

    def add(part: str, numbers: int) -> None:
        if numbers:
            parts[part] = parts.get(part, 0) + numbers

    for name, layer in plan.items():
        group = _group(name)
        if layer.is_embedding:
            add(group, layer.parameters)
            continue
        add(f"{group}: matrices", layer.num_parameters)
        add(f"{group}: gates", layer.num_gates)
        if kind.has_biases:
            add(f"{group}: biases", layer.outputs)
    for part, numbers in kind.other_parts(config.model).items():
        add(part, numbers)
    return parts


def _group(name: str) -> str:
    """`blocks` for all layers of all blocks; otherwise the module's own name, its number left out."""
    return "blocks" if IN_BLOCK.search(name) else re.sub(r"\.(\d+|dense)$", "", name).rpartition(".")[2]
