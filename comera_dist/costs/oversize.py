"""Finds layers that store more numbers than a dense layer would. Such a run goes well, so only this line shows it."""

from collections.abc import Mapping

from comera_dist.config.registry import FORMATS
from comera_dist.config.tree import Config
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.plan import Plan, rule_for
from comera_dist.models.family import kind_of

NAMED = 3  # layers that the sentence names; chosen: they fit on one or two lines of a terminal


def oversize_line(config: Config, plan: Plan) -> str | None:
    """One sentence that names the layers that store more than dense ones, and the remedy; None if there are none."""
    larger = {name: layer for name, layer in plan.items() if layer.is_oversize}
    if not larger:
        return None
    named = [
        f"{name} ({layer.parameters:,} numbers, dense {layer.dense_parameters:,})"
        for name, layer in list(larger.items())[:NAMED]
    ]
    more = f" and {len(larger) - NAMED} more" if len(larger) > NAMED else ""
    keys = {kind_of(config.model).format_key(name) for name in larger}
    remedy = "set " + " and ".join(f"model.format.{key}=dense" for key in sorted(keys))
    if ranks := _rank_keys(config, larger):
        remedy = f"lower {', '.join(ranks[:-1])}{' or ' if ranks[:-1] else ''}{ranks[-1]}, or {remedy}"
    return f"Larger than dense: {len(larger)} of {len(plan)} matrices, {', '.join(named)}{more}; {remedy}."


def _rank_keys(config: Config, larger: Mapping[str, MatrixPlan]) -> list[str]:
    """Where the configuration sets ranks of these layers that can be lowered."""
    keys: dict[str, None] = {}
    for name, layer in larger.items():
        section = "embeddings" if layer.is_embedding else "layers"
        rule = rule_for(name, getattr(config.tensor, section))
        if rule is not None and any("rank" in key for key in rule.model_dump(exclude_none=True) | rule.options):
            keys[f"the ranks in tensor.{section}"] = None
            continue
        format_key = kind_of(config.model).format_key(name)
        format = FORMATS[(rule and rule.format) or getattr(config.model.format, format_key)]
        keys |= dict.fromkeys(format.rank_keys(config.tensor, layer.is_embedding))
    return list(keys)
