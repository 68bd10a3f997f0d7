"""The weight matrices of a deep-learning recommendation model (Naumov et al. 2019, arXiv 1906.00091)."""

from dataclasses import dataclass
from itertools import pairwise

from comera_dist.config.tree import Config
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan, check_rules, plan_embedding, plan_linear


@dataclass(frozen=True)
class DLRMFacts:
    """What a DLRM must know about its data: the number of numeric features, and the rows of each category's table."""

    dense_features: int
    table_rows: tuple[int, ...]


def plan_dlrm(config: Config, facts: DLRMFacts) -> Plan:
    """Plans `tables.I` for every categorical feature and the layers `bottom.I` and `top.I` of the two MLPs.

    Raises ConfigError where a rule of `tensor` matches no layer or asks for an impossible shape, and for data of a
    single vector: nothing would interact.
    """
    model = config.model
    if _vectors(facts) < 2:
        raise ConfigError(
            f"a DLRM multiplies pairs of vectors, one for each category and one for all numbers, and the data have "
            f"{len(facts.table_rows)} categories and {facts.dense_features} numbers; prepare them with another category"
        )
    plan = {}
    for index, rows in enumerate(facts.table_rows):
        name = f"tables.{index}"
        plan[name] = plan_embedding(config, name, getattr(model.format, format_key(name)), rows, model.embedding_dim)
    bottom, top = mlp_widths(config, facts)
    for mlp, widths in (("bottom", bottom), ("top", top)):
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            name = f"{mlp}.{index}"
            plan[name] = plan_linear(config, name, getattr(model.format, format_key(name)), inputs, outputs)
    check_rules(config, plan)
    return plan


def format_key(name: str) -> str:
    """The key of `model.format` that says how the layer `name` is stored."""
    return "embedding" if name.startswith("tables.") else "mlp"


def mlp_widths(config: Config, facts: DLRMFacts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Features before, between and after the layers of the bottom and the top MLP; no bottom one without numbers.

    The top MLP reads the bottom one's output and the dot products of all pairs of vectors.
    """
    model = config.model
    pairs = _vectors(facts) * (_vectors(facts) - 1) // 2
    bottom = (facts.dense_features, *model.bottom, model.embedding_dim) if facts.dense_features else ()
    passed_on = model.embedding_dim if facts.dense_features else 0
    return bottom, (passed_on + pairs, *model.top, 1)


def _vectors(facts: DLRMFacts) -> int:
    return len(facts.table_rows) + bool(facts.dense_features)
