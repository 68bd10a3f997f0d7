"""Layers that a tensor train makes larger: a mistake of sizes that nothing else shows in a run that goes well."""

from comera_dist.config.tree import Config
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.plan import Plan
from comera_dist.models.family import kind_of

NAMED = 3  # layers that are spelled out


def oversize_line(config: Config, plan: Plan) -> str | None:
    """One sentence that names the layers that store more than dense ones, and the remedy; None where there are none."""
    larger = {name: layer for name, layer in plan.items() if layer.parameters > layer.dense_parameters}
    if not larger:
        return None
    some = [
        f"{name} ({layer.parameters:,} numbers, dense {layer.dense_parameters:,})"
        for name, layer in list(larger.items())[:NAMED]
    ]
    named = ", ".join(some) + (f" and {len(larger) - NAMED} more" if len(larger) > NAMED else "")
    formats = sorted({f"model.format.{kind_of(config.model).format_key(name)}=dense" for name in larger})
    return (
        f"Larger than dense as tensor trains: {len(larger)} of {len(plan)} matrices, {named}; "
        f"lower {_rank_keys(config, larger)}, or set {' and '.join(formats)}."
    )


def _rank_keys(config: Config, larger: dict[str, MatrixPlan]) -> str:
    keys = []
    if not all(layer.is_embedding for layer in larger.values()):
        keys += ["tensor.rank", "tensor.outer_rank"] + ["the ranks in tensor.layers"] * bool(config.tensor.layers)
    if any(layer.is_embedding for layer in larger.values()):
        keys += ["tensor.embedding_rank"] + ["the ranks in tensor.embeddings"] * bool(config.tensor.embeddings)
    return " or ".join([", ".join(keys[:-1]), keys[-1]]) if len(keys) > 1 else keys[0]
