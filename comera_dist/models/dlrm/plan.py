"""The weight matrices of a deep-learning recommendation model (Naumov et al. 2019, arXiv 1906.00091)."""

from dataclasses import dataclass
from itertools import pairwise

from comera_dist.config.model_section import ModelSection
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
    model, vectors = config.model, len(facts.table_rows) + bool(facts.dense_features)
    if vectors < 2:
        raise ConfigError(
            f"a DLRM multiplies pairs of vectors, one for each category and one for all numbers, and the data have "
            f"{len(facts.table_rows)} categories and {facts.dense_features} numbers; prepare them with another category"
        )
    plan = {}
    for index, rows in enumerate(facts.table_rows):
        name = f"tables.{index}"
        plan[name] = plan_embedding(config, name, model.format.embedding, rows, model.embedding_dim)
    for mlp, widths in _mlp_widths(model, facts.dense_features, vectors).items():
        for index, (inputs, outputs) in enumerate(pairwise(widths)):
            name = f"{mlp}.{index}"
            plan[name] = plan_linear(config, name, model.format.mlp, inputs, outputs)
    check_rules(config, plan)
    return plan


def format_key(name: str) -> str:
    """The key of `model.format` that sets the format of the layer `name`."""
    return "embedding" if name.startswith("tables.") else "mlp"


def _mlp_widths(model: ModelSection, numbers: int, vectors: int) -> dict[str, tuple[int, ...]]:
    """Input, hidden and output features of both MLPs; without `numbers` (numeric features) there is no bottom MLP.

    The top MLP reads the output of the bottom MLP and the dot products of all pairs of vectors.
    """
    pairs = vectors * (vectors - 1) // 2
    if not numbers:
        return {"top": (pairs, *model.top, 1)}
    return {
        "bottom": (numbers, *model.bottom, model.embedding_dim),
        "top": (model.embedding_dim + pairs, *model.top, 1),
    }
