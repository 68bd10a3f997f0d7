"""Decides, before any tensor exists, how weight matrices are stored.

The plan is the one source of truth about shapes: the model is built from it, the estimate counts it, and a checkpoint
carries it, so that a run resumes at the ranks that it had and not at those of the configuration.
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pydantic import ValidationError

from comera_dist.config.fields import MOST_ROWS, Section
from comera_dist.config.registry import FORMATS
from comera_dist.config.tree import Config, EmbeddingRule, LayerRule
from comera_dist.errors import ConfigError
from comera_dist.formats.base import MatrixPlan, Tables
from comera_dist.formats.removed import RemovedPlan

Plan = dict[str, MatrixPlan]


def matrix_size(plan: Plan, name: str) -> str:
    """Inputs and outputs of a matrix in words."""
    return f"{plan[name].inputs} → {plan[name].outputs}" if name in plan else "missing"


def plan_linear(config: Config, name: str, format: str, inputs: int, outputs: int) -> MatrixPlan:
    """The linear layer `name` in the format of that name, as `tensor` and its rules say. Raises ConfigError."""
    _check_sizes(name, inputs, outputs)
    rule = rule_for(name, config.tensor.layers)
    found = FORMATS[rule.format if rule and rule.format else format]
    return found.plan_linear(inputs, outputs, _with_rule(found.options_in(config.tensor), rule, found.name))


def plan_embedding(config: Config, name: str, format: str, rows: int, width: int) -> MatrixPlan:
    """The embedding table `name` in the format of that name, as `tensor` and its rules say. Raises ConfigError."""
    _check_sizes(name, rows, width)
    rule = rule_for(name, config.tensor.embeddings)
    is_small = rows < config.tensor.embedding_min_rows and not (rule and rule.format)
    chosen = rule.format if rule and rule.format else format
    found = FORMATS["dense" if is_small else chosen]
    if not isinstance(found, Tables):
        raise ConfigError(
            f"{name} is a table and the format {chosen} stores none; choose another in model.format.embedding"
        )
    rule = None if is_small else rule
    return found.plan_table(rows, width, _with_rule(found.table_options_in(config.tensor), rule, found.name))


def write_plan(plan: Plan) -> dict[str, dict[str, Any]]:
    """The plan as JSON."""
    return {name: layer.to_json() for name, layer in plan.items()}


def read_plan(record: Mapping[str, dict[str, Any]]) -> Plan:
    """The plan that `write_plan` wrote, now or in a version without tags.

    Raises ConfigError, KeyError or TypeError for a record that describes no matrix.
    """
    return {name: read_matrix(layer) for name, layer in record.items()}


def read_matrix(record: dict[str, Any]) -> MatrixPlan:
    """One matrix of `read_plan`."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in _tagged(record).items()}
    return _plan_class(fields.pop("format"))(**fields)


def check_rules(config: Config, plan: Plan) -> None:
    """ConfigError where a rule of `tensor.layers` or `tensor.embeddings` matches nothing."""
    for key, is_embedding in (("layers", False), ("embeddings", True)):
        names = [name for name, layer in plan.items() if layer.is_embedding == is_embedding]
        for rule in getattr(config.tensor, key):
            if not any(fnmatchcase(name, rule.match) for name in names):
                kind = "embedding" if is_embedding else "layer"
                raise ConfigError(
                    f"tensor.{key}: the pattern {rule.match!r} matches no {kind}; names look like {names[0]}"
                )


def _check_sizes(name: str, *sizes: int) -> None:
    for size in sizes:
        if not 1 <= size <= MOST_ROWS:
            raise ConfigError(
                f"{name} would be {sizes[0]} x {sizes[1]}, expected 1 to {MOST_ROWS} of each; change the model or its "
                f"data"
            )


def rule_for(name: str, rules: tuple) -> LayerRule | EmbeddingRule | None:
    """The first rule whose pattern matches the layer `name`; None if there is none."""
    return next((rule for rule in rules if fnmatchcase(name, rule.match)), None)


def _with_rule(options: Section, rule: LayerRule | EmbeddingRule | None, format: str) -> Section:
    """The options with those that the rule sets in their place."""
    if rule is None:
        return options
    given = {k: v for k, v in rule if k not in ("match", "format", "options") and v is not None} | rule.options
    unknown = [key for key in given if key not in type(options).model_fields]
    if unknown and type(options).model_fields:
        raise ConfigError(
            f"the rule for {rule.match!r} sets {unknown[0]}, which the format {format} does not have; it has "
            f"{', '.join(type(options).model_fields)}"
        )
    try:
        return type(options).model_validate({k: v for k, v in {**dict(options), **given}.items() if k not in unknown})
    except ValidationError as error:
        found = error.errors()[0]
        raise ConfigError(
            f"the rule for {rule.match!r}: {found['loc'][0]} = {found['input']} is not possible: {found['msg']}"
        ) from error


def _plan_class(tag: str) -> Callable[..., MatrixPlan]:
    formats = [FORMATS[name] for name in FORMATS.names()]
    tables = [format.table_plan for format in formats if isinstance(format, Tables)]
    plans = {plan.tag: plan for plan in (RemovedPlan, *(format.linear_plan for format in formats), *tables)}
    if tag not in plans:
        raise ConfigError(f"the format {tag} is not known; add it to FORMATS before the checkpoint is read")
    return plans[tag]


def _tagged(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the tag that earlier versions did without."""
    if "format" in record:
        return record
    if record.get("is_removed"):
        return {"format": "removed", "inputs": record["inputs"], "outputs": record["outputs"]}
    if record["shape"] is None:
        return {"format": "dense", **{key: record[key] for key in ("inputs", "outputs", "is_embedding")}}
    return {"format": "tensor_train_matrix" if record["is_embedding"] else "tensor_train", **record["shape"]}
