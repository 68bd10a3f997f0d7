"""Decoders that fit a budget, each with its costs and its expected loss."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

from comera_dist.config.tensor_section import Budget
from comera_dist.config.tree import Config
from comera_dist.costs.budget import excess
from comera_dist.costs.estimate import Estimate, estimate
from comera_dist.costs.of_run import plan_run
from comera_dist.costs.widths import feed_forward_width, widest_fitting, widths
from comera_dist.design.loss_fit import Features, LossFit, Prediction
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.decoder.plan import BIGRAMS

RANKS = (1, 2, 3)  # of block trains; chosen: more are as large as dense matrices at widths that were measured
MATRICES = (1, 2)  # that blocks share; chosen: four blocks with more of them are nearly dense
VOCABULARY = (0.25, 0.375, 0.5, 0.625)  # rank of a low-rank vocabulary, of the width; chosen around the measured ones
FURTHER = 1.75  # of one width to another that costs less: up to 1.63 of all forms here, at widths up to 1,200
GROWTH = 1.05  # of one tried width to the next; chosen: a budget is then used to about a tenth

# The configuration with some overrides more. Raises ConfigError.
Read = Callable[[Sequence[str]], Config]


@dataclass(frozen=True)
class Proposal:
    """A decoder; `overrides` make it of the configuration that was given."""

    overrides: tuple[str, ...]
    is_dense: bool
    config: Config
    plan: Plan
    costs: Estimate
    expected: Prediction


@dataclass(frozen=True)
class Task:
    """Training on `tokens` tokens with a vocabulary of `vocab_size`, within a budget."""

    budget: Budget
    tokens: int
    vocab_size: int


def propose(read: Read, task: Task, fit: LossFit) -> list[Proposal]:
    """For each form and depth the widest model within the budget, by rising expected loss.

    Depths are the measured ones. Forms that the rest of the configuration excludes are left out. Raises ConfigError if
    that excludes all, or if no model fits. A form whose layers are planned as those of an earlier one, such as a
    vocabulary that would be no smaller in low rank, is left out.
    """
    search = _Search(read, task, fit)
    forms = [(form, depth) for depth in sorted({model.layers for model in fit.models}) for form in _forms(depth)]
    tried = (search.widest(form, depth) for form, depth in _possible(forms, search))
    fitting = [proposal for proposal in tried if proposal is not None]
    if not fitting:
        limits = ", ".join(f"{limit:,.0f} {key}" for key, limit in task.budget if limit is not None)
        raise ConfigError(f"no model within {limits} was found; raise the budget or take a smaller vocabulary")
    different = {tuple(proposal.plan.items()): proposal for proposal in reversed(fitting)}.values()
    return sorted(different, key=lambda proposal: proposal.expected.loss)


def features(config: Config, plan: Plan, tokens: int) -> Features:
    """The features of a decoder's plan, without a table of pairs, which no measured model has."""
    blocks = [layer for name, layer in plan.items() if IN_BLOCK.search(name)]
    vocabulary = [layer for name, layer in plan.items() if not IN_BLOCK.search(name) and name != BIGRAMS]
    return Features(
        matrices=sum(layer.num_parameters for layer in blocks),
        width=config.model.d_model,
        layers=config.model.layers,
        vocabulary=sum(layer.parameters for layer in vocabulary),
        tokens=tokens,
        format=next((layer.tag for layer in blocks if layer.tag != "dense"), "dense"),
    )


# The overrides that make a model of some form at a width.
Form = Callable[[int], tuple[str, ...]]


def _forms(depth: int) -> Iterator[Form]:
    """Dense models, and structured ones with dense and with low-rank vocabularies. All tie table and head."""
    yield _dense
    for share in (None, *VOCABULARY):
        for rank in RANKS:
            yield partial(_structured, "block_train", f"tensor.block_train.rank={rank}", share)
        for count in MATRICES:
            if count < depth:  # with a matrix for each block, nothing is shared
                yield partial(_structured, "shared", f"tensor.shared.matrices={count}", share)


def _dense(width: int) -> tuple[str, ...]:
    return "model.tie_embeddings=true", "model.format=dense"


def _structured(format: str, option: str, share: float | None, width: int) -> tuple[str, ...]:
    """Blocks in `format`; the vocabulary has a rank of `share` of the width, or is dense."""
    vocabulary = "dense" if share is None else "low_rank"
    formats = f"{{attention: {format}, mlp: {format}, embedding: {vocabulary}, head: {vocabulary}}}"
    of_table = () if share is None else (f"tensor.low_rank.rank={max(1, round(share * width))}",)
    return "model.tie_embeddings=true", f"model.format={formats}", option, *of_table


class _Search:
    """Tries the widths of a form."""

    def __init__(self, read: Read, task: Task, fit: LossFit):
        self._read, self._task, self._fit = read, task, fit
        self._base = read(()).model
        self._widths = widths(2 * self._base.heads, GROWTH)  # multiples that rotary positions need

    def narrowest(self, form: Form, depth: int) -> Proposal:
        """Raises ConfigError if the configuration excludes the form, e.g. by a rule for a block that is not there."""
        return self._proposed(form, depth, self._widths[0])

    def widest(self, form: Form, depth: int) -> Proposal | None:
        """The widest model of the form within the budget; None if none fits."""
        proposed = cache(lambda width: self._proposed(form, depth, width))
        found = widest_fitting(self._widths, lambda width: self._exceeds(proposed(width)), FURTHER)
        return None if found is None else proposed(found)

    def _exceeds(self, proposal: Proposal) -> bool:
        return bool(excess(self._task.budget, proposal.costs))

    def _overrides(self, form: Form, depth: int, width: int) -> tuple[str, ...]:
        d_ff = feed_forward_width(self._base.d_ff, self._base.d_model, width)
        return f"model.d_model={width}", f"model.d_ff={d_ff}", f"model.layers={depth}", *form(width)

    def _proposed(self, form: Form, depth: int, width: int) -> Proposal:
        overrides = self._overrides(form, depth, width)
        config = self._read(overrides)
        plan = plan_run(config, self._task.vocab_size)
        costs = estimate(config, plan, num_processes=1, tokens_per_forward=config.tokens_per_forward(1))
        model = features(config, plan, self._task.tokens)
        return Proposal(overrides, model.format == "dense", config, plan, costs, self._fit.predict(model))


def _possible(forms: Sequence[tuple[Form, int]], search: _Search) -> list[tuple[Form, int]]:
    """The forms, each with a depth, that the configuration allows. Raises the first ConfigError if it allows none."""
    allowed, refused = [], []
    for form, depth in forms:
        try:
            search.narrowest(form, depth)
            allowed.append((form, depth))
        except ConfigError as error:
            refused.append(error)
    if not allowed:
        raise refused[0]
    return allowed
