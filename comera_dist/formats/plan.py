"""Plans the weight matrices of a model before any tensor exists.

The plan is the one source of truth about shapes: the model is built from it, the estimate counts it, and a checkpoint
stores it, so that a run resumes at the ranks of the checkpoint and not of the configuration.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from comera_dist.config.fields import MOST_ROWS, Section
from comera_dist.config.registry import FORMATS
from comera_dist.config.tensor_section import EmbeddingRule, LayerRule
from comera_dist.config.tree import Config
from comera_dist.errors import ConfigError
from comera_dist.formats.base import Format, MatrixPlan, Tables
from comera_dist.formats.removed import RemovedPlan

Plan = dict[str, MatrixPlan]
Rule = LayerRule | EmbeddingRule

# Names of fields in the trains of earlier versions' checkpoints.
OLD_NAMES = {
    "in_features": "inputs",
    "num_embeddings": "inputs",
    "vocab_modes": "in_modes",
    "out_features": "outputs",
    "embedding_dim": "outputs",
    "width_modes": "out_modes",
}


def matrix_size(plan: Plan, name: str) -> str:
    """Inputs and outputs of a matrix in words."""
    return f"{plan[name].inputs} → {plan[name].outputs}" if name in plan else "missing"


def plan_linear(config: Config, name: str, format: str, inputs: int, outputs: int) -> MatrixPlan:
    """Plans the linear layer `name` in `format`, unless a rule of `tensor.layers` names another. Raises ConfigError."""
    _check_sizes(name, inputs, outputs)
    rule = rule_for(name, config.tensor.layers)
    found: Format = FORMATS[rule.format if rule and rule.format else format]
    return found.plan_linear(inputs, outputs, _with_rule(found.options_in(config.tensor), rule, found.name))


def plan_embedding(config: Config, name: str, format: str, rows: int, width: int) -> MatrixPlan:
    """Plans the table `name` in `format`, unless a rule of `tensor.embeddings` names another. Raises ConfigError.

    A table of fewer rows than `tensor.embedding_min_rows` is dense if no rule names its format.
    """
    _check_sizes(name, rows, width)
    rule = rule_for(name, config.tensor.embeddings)
    if rows < config.tensor.embedding_min_rows and not (rule and rule.format):
        rule, chosen = None, "dense"
    else:
        chosen = rule.format if rule and rule.format else format
    found = format_of_tables(chosen)
    return found.plan_table(rows, width, _with_rule(found.table_options_in(config.tensor), rule, chosen))


def format_of_tables(format: str) -> Tables:
    """The format of this name. ConfigError if it stores no tables."""
    found: Format = FORMATS[format]
    if isinstance(found, Tables):
        return found
    able = ", ".join(name for name in FORMATS.names() if isinstance(FORMATS[name], Tables))
    raise ConfigError(f"the format {format} stores no tables; choose another for embeddings: {able}")


def write_plan(plan: Plan) -> dict[str, dict[str, Any]]:
    """The plan as JSON."""
    return {name: layer.to_json() for name, layer in plan.items()}


def read_plan(record: Mapping[str, dict[str, Any]]) -> Plan:
    """The plan that `write_plan` of this or an earlier version wrote.

    Raises ConfigError, KeyError or TypeError for a record that describes no matrix.
    """
    return {name: read_matrix(layer) for name, layer in record.items()}


def read_matrix(record: dict[str, Any]) -> MatrixPlan:
    """One matrix of `read_plan`."""
    tagged = _tagged(record)
    plan = _plan_class(tagged["format"])
    fields = {OLD_NAMES.get(k, k): tuple(v) if isinstance(v, list) else v for k, v in tagged.items() if k != "format"}
    return plan(**fields)


def check_rules(config: Config, plan: Plan) -> None:
    """ConfigError if a rule of `tensor.layers` or `tensor.embeddings` matches nothing."""
    for key, kind, rules in (
        ("layers", "layer", config.tensor.layers),
        ("embeddings", "embedding", config.tensor.embeddings),
    ):
        names = [name for name, layer in plan.items() if layer.is_embedding == (kind == "embedding")]
        for rule in rules:
            if not any(fnmatchcase(name, rule.match) for name in names):
                raise ConfigError(
                    f"tensor.{key}: the pattern {rule.match!r} matches no {kind}; names look like {names[0]}"
                )


def _check_sizes(name: str, *sizes: int) -> None:
    if not all(1 <= size <= MOST_ROWS for size in sizes):
        raise ConfigError(
            f"{name} would be {sizes[0]} x {sizes[1]}, expected 1 to {MOST_ROWS} of each; change the model or its data"
        )


def rule_for(name: str, rules: Sequence[Rule]) -> Rule | None:
    """The first rule whose pattern matches the layer `name`; None if there is none."""
    return next((rule for rule in rules if fnmatchcase(name, rule.match)), None)


def _with_rule(options: Section, rule: Rule | None, format: str) -> Section:
    """The options, overridden by those that the rule sets.

    A format without options ignores those of a rule that does not name it, because the rule may match other layers too.
    """
    known = type(options).model_fields
    if rule is None or (not known and rule.format is None):
        return options
    given = {k: v for k, v in rule if k not in ("match", "format", "options") and v is not None} | rule.options
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ConfigError(
            f"the rule for {rule.match!r} sets {unknown[0]}, which the format {format} does not have; it has "
            f"{', '.join(known) or 'no keys, so remove it'}"
        )
    try:
        return type(options).model_validate({**dict(options), **given})
    except ValidationError as error:
        found = error.errors()[0]
        raise ConfigError(
            f"the rule for {rule.match!r}: {found['loc'][0]} = {found['input']} is not possible: {found['msg']}"
        ) from error


def _plan_class(tag: str) -> Callable[..., MatrixPlan]:
    for plan in _plan_classes():
        if plan.tag == tag:
            return plan
    raise ConfigError(f"the format {tag} is not known; add it to FORMATS before the checkpoint is read")


def _plan_classes() -> Iterator[type[MatrixPlan]]:
    """Every class of plans, one by one: a format is imported only if no class before it is the wanted one."""
    yield RemovedPlan
    for name in FORMATS.names():
        format: Format = FORMATS[name]
        yield format.linear_plan
        if isinstance(format, Tables):
            yield format.table_plan


def _tagged(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the tag `format`, which earlier versions did not write."""
    if "format" in record:
        return record
    if record.get("is_removed"):
        return {"format": "removed", "inputs": record["inputs"], "outputs": record["outputs"]}
    if record["shape"] is None:
        return {"format": "dense", **{key: record[key] for key in ("inputs", "outputs", "is_embedding")}}
    return {"format": "tensor_train_matrix" if record["is_embedding"] else "tensor_train", **record["shape"]}
