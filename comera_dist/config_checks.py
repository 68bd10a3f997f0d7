"""Sentences about values of a configuration that are fine alone and cannot stand together."""

import difflib

from pydantic import BaseModel

from comera_dist.config import TARGETS, Config

# What this tree decides for DeepSpeed, and the key to use instead.
OWNED_BY_US = {
    "train_batch_size": "train.batch_tokens",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
    "gradient_accumulation_steps": "train.micro_batch",
    "gradient_clipping": "train.grad_clip",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "torch_autocast": "train.precision",
    "optimizer": "optim",
    "scheduler": "schedule",
    "checkpoint": "checkpoint",
    "wandb": "wandb",
}
PASSED_THROUGH = {
    "zero_optimization",
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "comms_logger",
    "flops_profiler",
    "wall_clock_breakdown",
    "memory_breakdown",
    "dump_state",
    "steps_per_print",
    "csv_monitor",
    "tensorboard",
}


def impossible_combinations(config: Config) -> list[str]:
    """One sentence each: what was found, what was expected, what to do."""
    model, train = config.model, config.train
    problems = []
    if (train.steps is None) == (train.tokens is None):
        found = "neither" if train.steps is None else "both"
        problems.append(f"{found} of train.steps and train.tokens is set; set exactly one of them")
    problems += MODEL_PROBLEMS[model.kind](config) + _batch_problems(config) + _optimizer_problems(config)
    if config.train.steps and config.schedule.warmup_steps >= config.train.steps > 1:
        problems.append(
            f"schedule.warmup_steps = {config.schedule.warmup_steps} leaves no step after the warm-up of "
            f"train.steps = {config.train.steps}; lower it"
        )
    return problems + _rank_problems(config) + _deepspeed_problems(config.deepspeed)


def _rank_problems(config: Config) -> list[str]:
    problems, ranks, train = [], config.ranks, config.train
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
    if ranks.adapt and targets and (train.steps is None) != (train.tokens is None):
        last_sync = config.total_steps // ranks.sync_every * ranks.sync_every
        if last_sync < round(ranks.late_end * config.total_steps):
            problems.append(
                f"ranks.sync_every = {ranks.sync_every} leaves no sync between ranks.late_end = {ranks.late_end} and "
                f"the last of {config.total_steps} steps; lower either"
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


def _deepspeed_problems(block: dict) -> list[str]:
    problems = []
    for key in block:
        if key in OWNED_BY_US:
            problems.append(f"deepspeed.{key} is decided by {OWNED_BY_US[key]}; set that and remove this key")
        elif key not in PASSED_THROUGH:
            near = difflib.get_close_matches(key, PASSED_THROUGH, n=1)
            hint = f"did you mean deepspeed.{near[0]}?" if near else f"use one of {', '.join(sorted(PASSED_THROUGH))}"
            problems.append(f"deepspeed.{key} is not a key that can be passed through; {hint}")
    if isinstance(block.get("zero_optimization"), dict) and "stage" in block["zero_optimization"]:
        problems.append("deepspeed.zero_optimization.stage is decided by train.zero_stage; remove this key")
    return problems
