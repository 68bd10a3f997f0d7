"""Sentences about values of a configuration that are fine alone and cannot stand together."""

from pydantic import BaseModel

from comera_dist.config.deepspeed import keys_of_other_stages
from comera_dist.config.registry import FORMATS
from comera_dist.config.tree import TARGETS, Config


def impossible_combinations(config: Config) -> list[str]:
    """One sentence each: what was found, what was expected, what to do."""
    model, train = config.model, config.train
    problems = []
    if (train.steps is None) == (train.tokens is None):
        found = "neither" if train.steps is None else "both"
        problems.append(f"{found} of train.steps and train.tokens is set; set exactly one of them")
    problems += _batch_problems(config)
    if not problems:  # otherwise nobody knows how many steps the run has
        problems += _schedule_problems(config) + _sync_problems(config)
    problems += (
        _format_problems(config)
        + MODEL_PROBLEMS[model.kind](config)
        + _optimizer_problems(config)
        + _rank_problems(config)
    )
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
    changed = [key for key, _ in ranks if _is_changed(ranks, key)]
    if changed and not ranks.adapt:
        problems.append(
            f"ranks.{changed[0]} has no effect while ranks.adapt is false; set ranks.adapt=true or remove it"
        )
    return problems


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


def _format_problems(config: Config) -> list[str]:
    name = config.model.format.embedding
    if hasattr(FORMATS[name], "plan_table"):
        return []
    return [f"model.format.embedding = {name} is not possible: this format stores no tables; set it to another"]


def _optimizer_problems(config: Config) -> list[str]:
    optim, problems = config.optim, []
    if optim.kind != "galore" and _is_changed(optim, "galore"):
        problems.append(
            f"optim.galore has no effect while optim.kind is {optim.kind}; set optim.kind=galore or remove it"
        )
    if optim.kind == "adamw":
        return problems
    if config.train.zero_stage:
        problems.append(
            f"optim.kind = {optim.kind} needs whole matrices, which train.zero_stage = {config.train.zero_stage} "
            f"splits; set train.zero_stage=0"
        )
    if config.ranks.adapt:
        problems.append(f"optim.kind = {optim.kind} cannot adapt ranks; set optim.kind=adamw or ranks.adapt=false")
    if config.train.cuda_graphs:
        problems.append(
            f"optim.kind = {optim.kind} cannot be captured; set optim.kind=adamw or train.cuda_graphs=false"
        )
    return problems


def _is_changed(section: BaseModel, key: str) -> bool:
    """Not whether it was given: a resolved configuration gives everything."""
    return getattr(section, key) != type(section).model_fields[key].default


def _decoder_problems(config: Config) -> list[str]:
    model, problems = config.model, []
    if model.d_model % (2 * model.heads):
        problems.append(
            f"model.d_model = {model.d_model} is not a multiple of 2 × model.heads = {2 * model.heads}, as rotary "
            f"positions need; change either"
        )
    if model.kv_heads is not None and model.heads % model.kv_heads:
        problems.append(
            f"model.heads = {model.heads} is not a multiple of model.kv_heads = {model.kv_heads}; change either"
        )
    if model.tie_embeddings and model.format.embedding != model.format.head:
        problems.append(
            f"model.tie_embeddings = true needs one format for both, found model.format.embedding = "
            f"{model.format.embedding} and model.format.head = {model.format.head}; set them alike"
        )
    return problems


def _encoder_problems(config: Config) -> list[str]:
    model, problems = config.model, []
    if model.d_model % model.heads:
        problems.append(
            f"model.d_model = {model.d_model} is not a multiple of model.heads = {model.heads}; change either"
        )
    if config.data.seq_len > model.positions:
        problems.append(
            f"data.seq_len = {config.data.seq_len} is longer than model.positions = {model.positions}; change either"
        )
    return problems


def _dlrm_problems(config: Config) -> list[str]:
    problems = []
    if config.train.batch_size is None:
        problems.append("train.batch_size is not set, and the rows of a DLRM are no tokens; set it, e.g. to 2048")
    if config.train.tokens is not None:
        problems.append(f"train.tokens = {config.train.tokens} means nothing to a DLRM; set train.steps instead")
    return problems


MODEL_PROBLEMS = {"decoder": _decoder_problems, "encoder": _encoder_problems, "dlrm": _dlrm_problems}
