"""Checks of values that are possible by themselves but not together."""

from collections.abc import Iterator

from comera_dist.config.data_section import LONGEST_PERIOD, USUAL_CORPUS, period_of
from comera_dist.config.deepspeed import idle_keys
from comera_dist.config.ranks_section import TARGETS
from comera_dist.config.registry import KINDS, OPTIMIZERS
from comera_dist.config.train_section import Train
from comera_dist.config.tree import Config


def impossible_combinations(config: Config) -> list[str]:
    """One sentence for each: found, expected, remedy."""
    problems = list(_length_problems(config))
    if not problems:  # otherwise the number of steps is unknown
        problems += [*_schedule_problems(config), *_sync_problems(config), *_profile_problems(config)]
        problems += [*_stop_early_problems(config), *_best_problems(config), *_ramp_problems(config)]
    problems += _data_problems(config)
    kind, optimizer = KINDS[config.model.kind], OPTIMIZERS[config.optim.kind](config.optim)
    problems += _recomputation_problems(config, kind.recomputes_blocks)
    problems += _teacher_problems(config, kind.learns_from_teachers)
    problems += kind.format_problems(config) + kind.problems(config)
    problems += [*optimizer.problems(config), *_rank_problems(config)]
    return problems + idle_keys(config.deepspeed, config.train.zero_stage)


def _length_problems(config: Config) -> Iterator[str]:
    train = config.train
    if (train.steps is None) == (train.tokens is None):
        found = "neither" if train.steps is None else "both"
        yield f"{found} of train.steps and train.tokens is set; set exactly one of them"
    if train.batch_size is not None and train.batch_tokens != Train().batch_tokens:
        yield (
            f"train.batch_size = {train.batch_size} and train.batch_tokens = {train.batch_tokens} are both set; "
            f"keep one"
        )
    elif train.batch_size is None and train.batch_tokens % config.row_tokens:
        below = max(1, train.batch_tokens // config.row_tokens) * config.row_tokens
        yield (
            f"train.batch_tokens = {train.batch_tokens} is not a multiple of data.seq_len = {config.row_tokens}; "
            f"nearest: {below} or {below + config.row_tokens}"
        )


def _data_problems(config: Config) -> Iterator[str]:
    data, names = config.data, [part.name for part in config.data.mixture]
    if names and data.corpus != USUAL_CORPUS:
        yield (
            f"data.corpus = {data.corpus} and data.mixture = {data.described} are both set; keep one, or withdraw the "
            f"other by data.corpus=null or data.mixture=[]"
        )
    repeated = [name for number, name in enumerate(names) if name in names[:number]]
    if repeated:
        yield (
            f"data.mixture has two corpora named {repeated[0]}, whose figures could not be told apart; name each "
            f"corpus once, and give folders different last names"
        )
    if names and period_of(data.shares) > LONGEST_PERIOD:
        yield (
            f"the weights of data.mixture are met exactly only after more than {LONGEST_PERIOD:,} rows; round them, "
            f"e.g. to hundredths that sum to 1"
        )


def _schedule_problems(config: Config) -> Iterator[str]:
    schedule, train, steps = config.schedule, config.train, config.total_steps
    length = f"train.steps = {steps}" if train.steps else f"train.tokens = {train.tokens}, which are {steps} steps"
    if schedule.warmup_steps >= steps > 1:
        yield f"schedule.warmup_steps = {schedule.warmup_steps} leaves no step after the warm-up of {length}; lower it"
    elif schedule.kind == "wsd" and schedule.warmup_steps + round(schedule.decay_fraction * steps) > steps > 1:
        yield (
            f"schedule.warmup_steps = {schedule.warmup_steps} and schedule.decay_fraction = {schedule.decay_fraction} "
            f"overlap in {length}; lower either"
        )


def _sync_problems(config: Config) -> Iterator[str]:
    """A run without a sync, or with a target but without a sync at which it can be reached."""
    ranks, steps = config.ranks, config.total_steps
    last_sync = steps // ranks.sync_every * ranks.sync_every
    if ranks.adapt and not last_sync:
        yield f"ranks.sync_every = {ranks.sync_every} leaves no sync within {steps} steps; lower it"
    elif ranks.adapt and ranks.target is not None and last_sync < round(ranks.late_end * steps):
        yield (
            f"ranks.sync_every = {ranks.sync_every} leaves no sync between ranks.late_end = {ranks.late_end} and the "
            f"last of {steps} steps; lower either, or train for {last_sync + ranks.sync_every} steps"
        )


def _profile_problems(config: Config) -> Iterator[str]:
    """Steps to trace that the run does not have."""
    bounds, steps = config.log.profile.bounds, config.total_steps
    if bounds is not None and bounds[1] > steps:
        yield f"log.profile.steps = {config.log.profile.steps} goes beyond the last of {steps} steps; name earlier ones"


def _stop_early_problems(config: Config) -> Iterator[str]:
    """A patience that no run of this length can lose."""
    patience, every = config.train.stop_early.patience, config.validation_every
    if patience is None:
        return
    if not every:
        yield "train.stop_early.patience counts validations, and eval.every = 0 makes none before the end; raise it"
    elif config.total_steps // every <= patience:
        yield (
            f"train.stop_early.patience = {patience} cannot run out within {config.total_steps // every} validations "
            f"(eval.every = {every}); lower either"
        )


def _best_problems(config: Config) -> Iterator[str]:
    """A best checkpoint of a run that is validated at its end alone."""
    every, steps = config.validation_every, config.total_steps
    if config.checkpoint.keep_best and not every:
        yield "checkpoint.keep_best compares validations, and eval.every = 0 makes none before the end; raise it"
    elif config.checkpoint.keep_best and every >= steps > 1:
        yield (
            f"checkpoint.keep_best compares validations, and eval.every = {every} makes none before the end of {steps} "
            f"steps; lower it"
        )


def _ramp_problems(config: Config) -> Iterator[str]:
    """A batch that cannot grow from its start to its size within the run."""
    start, steps, whole = config.train.batch_ramp.start, config.train.batch_ramp.steps, config.global_batch
    if (start is None) != (steps == 0):
        found, other = (f"steps = {steps}", "start") if start is None else (f"start = {start}", "steps")
        yield f"train.batch_ramp.{found} has no effect without train.batch_ramp.{other}; set both, or remove it"
    elif start is not None and (whole % start or start == whole):
        yield (
            f"train.batch_ramp.start = {start} does not divide the batch of {whole} sequences into two parts or more; "
            f"change either"
        )
    elif start is not None and steps >= config.total_steps:
        yield (
            f"train.batch_ramp.steps = {steps} leaves no step of the whole batch within {config.total_steps} steps; "
            f"lower it"
        )


def _rank_problems(config: Config) -> Iterator[str]:
    ranks = config.ranks
    targets = [key for key in TARGETS if getattr(ranks, key) is not None]
    if len(targets) > 1:
        yield f"ranks.{' and ranks.'.join(targets)} are set; the late stage goes for one target, keep one"
    if targets and ranks.late_start > ranks.late_end:
        yield (
            f"ranks.late_start = {ranks.late_start} comes after ranks.late_end = {ranks.late_end}; lower the one or "
            f"raise the other"
        )
    if ranks.adapt and not ranks.layers:
        yield "ranks.layers = [] leaves no layer whose ranks may change; name some, or set ranks.adapt=false"
    if ranks.adapt:
        yield from ranks.policy.problems(config)


def _teacher_problems(config: Config, can_learn: bool) -> Iterator[str]:
    if (run := config.train.teacher.run) is not None and not can_learn:
        yield (
            f"train.teacher.run = {run} and model.kind = {config.model.kind} cannot learn from a teacher; remove "
            f"train.teacher"
        )


def _recomputation_problems(config: Config, has_blocks: bool) -> Iterator[str]:
    """A mode of activation checkpointing that this kind of model or this ZeRO stage cannot have."""
    mode = config.train.activation_checkpointing
    if mode != "none" and not has_blocks:
        yield (
            f"train.activation_checkpointing = {mode} needs transformer blocks, and model.kind = {config.model.kind} "
            f"has none; set it to none"
        )
    elif mode == "selective" and config.train.zero_stage == 3:
        yield (
            "train.activation_checkpointing = selective is not possible at train.zero_stage = 3, which gathers weights "
            "while a block is recomputed; set it to block, or choose another stage"
        )
