"""The weight matrices of a deep-learning recommendation model (Naumov et al. 2019, arXiv 1906.00091)."""

from dataclasses import dataclass
from itertools import pairwise

from comera_dist.config.tree import Config
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan, check_rules, plan_embedding, plan_linear


@dataclass(frozen=True)
class DLRMFacts:
    """The facts about its data that a DLRM needs: the number of numeric features, and the rows of each table."""

    dense_features: int
    table_rows: tuple[int, ...]


def plan_dlrm(config: Config, facts: DLRMFacts) -> Plan:
    """The plans of a table `tables.I` per category and of the layers `bottom.I` and `top.I` of the two MLPs.

    Raises ConfigError if a rule of `tensor` matches no layer or asks for an impossible shape, or if the data have a
    single vector, which has nothing to interact with.
    """
    model, width = config.model, config.model.embedding_dim
    vectors = len(facts.table_rows) + bool(facts.dense_features)
    if vectors < 2:
        raise ConfigError(
            f"a DLRM multiplies pairs of vectors, one for each category and one for all numbers, and the data have "
            f"{len(facts.table_rows)} categories and {facts.dense_features} numbers; prepare them with another category"
        )
    plan = {}
    for index, rows in enumerate(facts.table_rows):
        plan[f"tables.{index}"] = plan_embedding(config, f"tables.{index}", model.format.embedding, rows, width)
    bottom = (facts.dense_features, *model.bottom, width) if facts.dense_features else ()
    # The top MLP reads the output of the bottom MLP and the dot products of all pairs of vectors.
    top = ((width if bottom else 0) + vectors * (vectors - 1) // 2, *model.top, 1)
    for mlp, widths in (("bottom", bottom), ("top", top)):
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            name = f"{mlp}.{index}"
            plan[name] = plan_linear(config, name, model.format.mlp, inputs, outputs)
    check_rules(config, plan)
    return plan


def format_key(name: str) -> str:
    """The key of `model.format` that sets the format of the layer `name`."""
    return "embedding" if name.startswith("tables.") else "mlp"
