"""Sentences about values of a configuration that are fine alone and cannot stand together."""

from collections.abc import Iterator

from pydantic import BaseModel

from comera_dist.config.by_kind import POLICY
from comera_dist.config.deepspeed import keys_of_other_stages
from comera_dist.config.registry import KINDS, OPTIMIZERS
from comera_dist.config.tree import TARGETS, Config, Ranks


def impossible_combinations(config: Config) -> list[str]:
    """One sentence each: what was found, what was expected, what to do."""
    train = config.train
    problems = []
    if (train.steps is None) == (train.tokens is None):
        found = "neither" if train.steps is None else "both"
        problems.append(f"{found} of train.steps and train.tokens is set; set exactly one of them")
    problems += _batch_problems(config)
    if not problems:  # otherwise nobody knows how many steps the run has
        problems += _schedule_problems(config) + _sync_problems(config)
    kind = KINDS[config.model.kind]
    problems += kind.format_problems(config) + kind.problems(config)
    problems += _optimizer_problems(config) + _rank_problems(config)
    return problems + keys_of_other_stages(config.deepspeed, train.zero_stage)


def _schedule_problems(config: Config) -> list[str]:
    schedule, train, steps = config.schedule, config.train, config.total_steps
    length = f"train.steps = {steps}" if train.steps else f"train.tokens = {train.tokens}, which are {steps} steps"
    if schedule.warmup_steps >= steps > 1:
        return [
            f"schedule.warmup_steps = {schedule.warmup_steps} leaves no step after the warm-up of {length}; lower it"
        ]
    if schedule.kind == "wsd" and schedule.warmup_steps + round(schedule.decay_fraction * steps) > steps > 1:
        return [
            f"schedule.warmup_steps = {schedule.warmup_steps} and schedule.decay_fraction = {schedule.decay_fraction} "
            f"overlap in {length}; lower either"
        ]
    return []


def _sync_problems(config: Config) -> list[str]:
    """Ranks that no sync ever adapts, or a target that none is left to reach."""
    ranks, steps = config.ranks, config.total_steps
    last_sync = steps // ranks.sync_every * ranks.sync_every
    if ranks.adapt and not last_sync:
        return [f"ranks.sync_every = {ranks.sync_every} leaves no sync within {steps} steps; lower it"]
    if not ranks.adapt or ranks.target is None or last_sync >= round(ranks.late_end * steps):
        return []
    return [
        f"ranks.sync_every = {ranks.sync_every} leaves no sync between ranks.late_end = {ranks.late_end} and the last "
        f"of {steps} steps; lower either"
    ]


def _rank_problems(config: Config) -> list[str]:
    problems, ranks = [], config.ranks
    targets = [key for key in TARGETS if getattr(ranks, key) is not None]
    if len(targets) > 1:
        problems.append(f"ranks.{' and ranks.'.join(targets)} are set; the late stage goes for one target, keep one")
    if ranks.loss_bound is not None and not targets:
        problems.append(
            f"ranks.loss_bound = {ranks.loss_bound} bounds the late stage, which has no target; set ranks.target_params"
        )
    if ranks.late_start > ranks.late_end:
        problems.append(
            f"ranks.late_start = {ranks.late_start} comes after ranks.late_end = {ranks.late_end}; lower the one or "
            f"raise the other"
        )
    if ranks.adapt and not ranks.layers:
        problems.append("ranks.layers = [] leaves no layer whose ranks may change; name some, or set ranks.adapt=false")
    if ranks.adapt:
        return problems + ranks.policy.problems(config)
    changed = next(_changed_ranks(ranks), None)
    if changed is not None:
        problems.append(f"{changed} has no effect while ranks.adapt is false; set ranks.adapt=true or remove it")
    return problems


def _changed_ranks(ranks: Ranks) -> Iterator[str]:
    """Keys of `ranks` and of its policy that are not as nobody set them."""
    for key, _ in ranks:
        if key != "policy" and _is_changed(ranks, key):
            yield f"ranks.{key}"
    if ranks.policy.kind != POLICY.usual:
        yield "ranks.policy"
    yield from (f"ranks.policy.{key}" for key, _ in ranks.policy if _is_changed(ranks.policy, key))


def _batch_problems(config: Config) -> list[str]:
    train = config.train
    if train.batch_size is not None and _is_changed(train, "batch_tokens"):
        return [
            f"train.batch_size = {train.batch_size} and train.batch_tokens = {train.batch_tokens} are both set; keep "
            "one"
        ]
    if train.batch_size is None and train.batch_tokens % config.row_tokens:
        below = max(1, train.batch_tokens // config.row_tokens) * config.row_tokens
        return [
            f"train.batch_tokens = {train.batch_tokens} is not a multiple of data.seq_len = {config.row_tokens}; "
            f"nearest: {below} or {below + config.row_tokens}"
        ]
    return []


def _optimizer_problems(config: Config) -> list[str]:
    optim = config.optim
    idle = [name for name, own in optim.own_sections().items() if name != optim.kind and optim.own(name, own) != own()]
    problems = [
        f"optim.{name} has no effect while optim.kind is {optim.kind}; set optim.kind={name} or remove it"
        for name in idle
    ]
    return problems + OPTIMIZERS[optim.kind](optim).problems(config)


def _is_changed(section: BaseModel, key: str) -> bool:
    """Not whether it was given: a resolved configuration gives everything."""
    return getattr(section, key) != type(section).model_fields[key].default
