"""A trained model with fewer numbers in the matrices of its blocks."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn

from comera_dist.compress.candidate import Candidate, Factors, is_factors
from comera_dist.compress.moments import measured_moments
from comera_dist.compress.ranks import choose_ranks
from comera_dist.config.registry import FORMATS
from comera_dist.config.tensor_section import LayerRule
from comera_dist.config.tree import Config
from comera_dist.data.batches import TrainBatches
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan, rule_for
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.family import kind_of
from comera_dist.run.trained import Trained
from comera_dist.runtime.processes import Processes


def compress(
    trained: Trained, task: Task[Any] | Mixture, format: str, params: int, tokens: int, processes: Processes
) -> tuple[Config, Plan]:
    """Stores dense matrices of blocks in `format`, in place, so that the model has at most `params` numbers.

    Ranks and weights are those that change the loss least, by moments over the first `tokens` training tokens. Returns
    the configuration with the formats, and the plan. Raises ConfigError if the format has not two factors, or if the
    budget is not possible.
    """
    model, config = trained.model, trained.config
    layers = dense_layers(model, trained.plan)
    if not layers:
        if kind_of(config.model).block_keys == ():
            raise ConfigError(
                f"a model of model.kind = {config.model.kind} has no blocks to compress; name a run of a model "
                f"that has transformer blocks"
            )
        raise ConfigError("the model has no dense matrix in its blocks; name a run of model.format=dense")
    plans = {name: planned(config, format, trained.plan[name]) for name in layers}
    batches = calibration(trained, task, tokens)
    moments = measured_moments(model, layers, batches, processes.device)
    candidates = {name: Candidate(layer, plans[name], moments[name]) for name, layer in layers.items()}
    stored = sum(parameter.numel() for parameter in model.parameters())
    ranks = choose_ranks(candidates, _budget(params, stored, candidates))
    plan = dict(trained.plan)
    for name, rank in ranks.items():
        if rank is not None:
            plan[name], layer = candidates[name].built(rank)
            model.set_submodule(name, layer.to(processes.device))
    return _with_format(trained, format, layers), plan


def dense_layers(model: nn.Module, plan: Plan) -> dict[str, nn.Linear]:
    """The dense matrices of blocks by name."""
    modules = {name: model.get_submodule(name) for name in plan if IN_BLOCK.search(name)}
    return {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}


def planned(config: Config, format: str, dense: Any) -> Factors:
    """The plan of a matrix in `format`, with the options of the configuration, at any rank."""
    found = FORMATS[format]
    plan = found.plan_linear(dense.inputs, dense.outputs, found.options_in(config.tensor))
    if not is_factors(plan):
        raise ConfigError(f"the format {format} has not two factors with one rank; name low_rank or block_train")
    return plan


def _budget(params: int, stored: int, candidates: Mapping[str, Candidate]) -> int:
    """The numbers that the candidates may store."""
    others = stored - sum(candidate.dense_numbers for candidate in candidates.values())
    if not others < params < stored:
        raise ConfigError(
            f"--params {params:,} is not possible: the model has {stored:,} numbers, of which {others:,} are outside "
            f"of the dense matrices of its blocks; name a number between them"
        )
    return params - others


def _with_format(trained: Trained, format: str, names: Collection[str]) -> Config:
    """The configuration with `format` for the kinds of these layers, and with the rows of a pass of the training.

    The checkpoint of the new run has one file, which does not tell these rows.
    """
    config = trained.config
    key_of = kind_of(config.model).format_key
    formats = config.model.format.model_copy(update={key_of(name): format for name in names})
    changed = {
        "model": config.model.model_copy(update={"format": formats}),
        "tensor": config.tensor.model_copy(update={"layers": _rules_with(config, format, names, trained.plan)}),
        "train": config.train.model_copy(update={"micro_batch": trained.micro_batch}),
    }
    return config.model_copy(update=changed)


def _rules_with(config: Config, format: str, names: Collection[str], all_names: Iterable[str]) -> tuple[LayerRule, ...]:
    """The rules of `tensor.layers`, with `format` in those for these layers: dense ones ignored their options."""
    rules: list[LayerRule] = []
    for rule in config.tensor.layers:
        matching = [name for name in all_names if rule_for(name, config.tensor.layers) is rule]
        changed = [name for name in matching if name in names]
        if not changed:
            rules.append(rule)
        elif len(changed) == len(matching):
            rules.append(LayerRule(match=rule.match, format=format))
        else:
            rules += [*(LayerRule(match=name, format=format) for name in changed), rule]
    return tuple(rules)


def calibration(trained: Trained, task: Task[Any] | Mixture, tokens: int) -> Iterator[NamedTuple]:
    """Micro batches of the run's first rows."""
    config, size = trained.config, trained.micro_batch
    rows = TrainBatches(task.train(), task.fingerprint, config.row_tokens, size, size, 0, 1, config.run.seed)
    for first in range(0, max(1, tokens // config.row_tokens), size):
        yield from rows.step(first)
