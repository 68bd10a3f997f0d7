"""Keys that have no effect beside the other values of a configuration.

A user who sets such a key expects something of it, so it is refused where a configuration is given. A run keeps it if
an earlier version took it without a word: see `reader.read_own_config` and `run/compatibility.py`.
"""

from collections.abc import Iterator
from functools import cache
from operator import attrgetter

from comera_dist.config.by_kind import POLICY
from comera_dist.config.data_section import Data
from comera_dist.config.ranks_section import OF_LATE_STAGE, Ranks
from comera_dist.config.registry import KINDS
from comera_dist.config.tree import Config, Schedule

OF_ROWS = frozenset({"seq_len", "documents", "masked_fraction"})  # keys of `data` that only some kinds of rows read
# Kinds of schedules by the key that they do not read.
SCHEDULES_WITHOUT = {"decay_fraction": ("cosine", "linear", "constant"), "final_lr_fraction": ("constant",)}
# Keys that say more about another one, which is null unless it is set.
COMPANIONS = {
    "run.start_step": "run.start_from",
    "train.stop_early.min_delta": "train.stop_early.patience",
    "train.teacher.step": "train.teacher.run",
    "train.teacher.share": "train.teacher.run",
}

Idle = Iterator[tuple[str, str]]  # name of a key or section, and a sentence


def idle_keys(config: Config) -> dict[str, str]:
    """A sentence for each key or section that differs from its default without effect: found, reason, remedy."""
    found = [*_of_rows(config), *_of_schedule(config.schedule), *_of_companions(config)]
    found += [*_of_optimizers(config), *_of_ranks(config.ranks)]
    return {**dict(found), **KINDS[config.model.kind].idle_keys(config)}


def _of_rows(config: Config) -> Idle:
    kind, usual = config.model.kind, Data()
    for key in sorted(OF_ROWS - KINDS[kind].row_keys(config)):
        if (value := getattr(config.data, key)) != getattr(usual, key):
            yield (
                f"data.{key}",
                f"data.{key} = {value} has no effect on model.kind = {kind} as it is configured; remove it",
            )


def _of_schedule(schedule: Schedule) -> Idle:
    for key, kinds in SCHEDULES_WITHOUT.items():
        if schedule.kind in kinds and (value := getattr(schedule, key)) != getattr(Schedule(), key):
            yield (
                f"schedule.{key}",
                f"schedule.{key} = {value} has no effect on schedule.kind = {schedule.kind}; choose another kind, or "
                f"remove it",
            )


def _of_companions(config: Config) -> Idle:
    for key, other in COMPANIONS.items():
        value_of = attrgetter(key)
        if attrgetter(other)(config) is None and (value := value_of(config)) != value_of(_usual()):
            yield key, f"{key} = {value} has no effect without {other}; set that too, or remove it"


@cache
def _usual() -> Config:
    return Config()


def _of_optimizers(config: Config) -> Idle:
    """Settings of optimizers that are not chosen."""
    optim = config.optim
    for name, section in optim.own_sections().items():
        if name != optim.kind and optim.own(name, section) != section():
            yield (
                f"optim.{name}",
                f"optim.{name} has no effect while optim.kind is {optim.kind}; set optim.kind={name} or remove it",
            )


def _of_ranks(ranks: Ranks) -> Idle:
    if not ranks.adapt:
        for name in _set_ranks(ranks):
            yield name, f"{name} has no effect while ranks.adapt is false; set ranks.adapt=true or remove it"
    elif ranks.target is None:  # the late stage never begins
        for key in OF_LATE_STAGE:
            if (value := getattr(ranks, key)) != getattr(Ranks(), key):
                yield (
                    f"ranks.{key}",
                    f"ranks.{key} = {value} is for the late stage, which has no target; set ranks.target_params or "
                    f"another target, or remove it",
                )


def _set_ranks(ranks: Ranks) -> Iterator[str]:
    """Keys of `ranks` and of its policy whose values differ from the default."""
    yield from (f"ranks.{key}" for key in ranks.model_dump(exclude={"policy"}, exclude_defaults=True))
    if ranks.policy.kind != POLICY.usual:
        yield "ranks.policy"
    else:
        yield from (f"ranks.policy.{key}" for key in ranks.policy.model_dump(exclude_defaults=True))
