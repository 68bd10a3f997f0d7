"""Decoders that fit a budget, each with its costs and its expected loss."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from comera_dist.config.tensor_section import Budget
from comera_dist.config.tree import Config
from comera_dist.costs.budget import excess
from comera_dist.costs.estimate import Estimate, estimate
from comera_dist.costs.of_run import plan_run
from comera_dist.costs.widths import feed_forward_width, widths
from comera_dist.design.loss_fit import Features, LossFit, Prediction
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.models.base import IN_BLOCK

RANKS = (1, 2, 3)  # of block trains; chosen: more are as large as dense matrices at widths that were measured
MATRICES = (1, 2)  # that blocks share; chosen: four blocks with more of them are nearly dense
VOCABULARY = (0.25, 0.375, 0.5, 0.625)  # rank of a low-rank vocabulary, of the width; chosen around the measured ones
GROWTH = 1.05  # of one tried width to the next; chosen: a budget is then used to about a tenth

# The configuration with some overrides more. Raises ConfigError.
Read = Callable[[Sequence[str]], Config]


@dataclass(frozen=True)
class Proposal:
    """A decoder; `overrides` make it of the configuration that was given."""

    overrides: tuple[str, ...]
    is_dense: bool
    config: Config
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

    Depths are the measured ones. Raises ConfigError if no model fits.
    """
    depths = sorted({model.layers for model in fit.models})
    found = [_widest(read, form, depth, task, fit) for depth in depths for form in _forms(depth)]
    fitting = [proposal for proposal in found if proposal is not None]
    if not fitting:
        limits = ", ".join(f"{limit:,.0f} {key}" for key, limit in task.budget if limit is not None)
        raise ConfigError(f"no model within {limits} was found; raise the budget or take a smaller vocabulary")
    return sorted(fitting, key=lambda proposal: proposal.expected.loss)


def features(config: Config, plan: Plan, tokens: int) -> Features:
    """The features of a decoder's plan."""
    blocks = [layer for name, layer in plan.items() if IN_BLOCK.search(name)]
    return Features(
        matrices=sum(layer.num_parameters for layer in blocks),
        width=config.model.d_model,
        layers=config.model.layers,
        vocabulary=sum(layer.parameters for name, layer in plan.items() if not IN_BLOCK.search(name)),
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


def _widest(read: Read, form: Form, depth: int, task: Task, fit: LossFit) -> Proposal | None:
    """The widest model of a form within the budget, whose costs grow with the width; None if none fits."""
    base = read(()).model

    def propose_at(width: int) -> Proposal:
        d_ff = feed_forward_width(base.d_ff, base.d_model, width)
        sizes = f"model.d_model={width}", f"model.d_ff={d_ff}", f"model.layers={depth}"
        overrides = (*sizes, *form(width))
        config = read(overrides)
        plan = plan_run(config, task.vocab_size)
        costs = estimate(config, plan, num_processes=1, tokens_per_forward=config.tokens_per_forward(1))
        model = features(config, plan, task.tokens)
        return Proposal(overrides, model.format == "dense", config, costs, fit.predict(model))

    tried = widths(2 * base.heads, GROWTH)  # multiples that rotary positions need
    fitting = bisect_right(tried, False, key=lambda width: bool(excess(task.budget, propose_at(width).costs)))
    return propose_at(tried[fitting - 1]) if fitting else None
