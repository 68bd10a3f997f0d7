"""Whether a configuration and its data fit a checkpoint, of the run itself or of another one."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.idle import idle_keys
from comera_dist.config.tree import Config
from comera_dist.config.yaml_tree import flat
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task, open_task
from comera_dist.data.vocabulary import Vocabulary
from comera_dist.errors import CheckpointError, ComeraError, DataError
from comera_dist.formats.plan import Plan, matrix_size
from comera_dist.models.family import kind_of
from comera_dist.runtime.processes import Processes

# Keys that a resume may not change: the rows, the function of the model, and the adaptation of its ranks.
FIXED = ("data.", "model.", "tensor.", "ranks.")
# Keys that training does not depend on. The data and run.seed are compared with the checkpoint's cursor.
WITHOUT_EFFECT = (
    "run.",
    "data.corpus",
    "data.mixture",
    "eval.",
    "checkpoint.",
    "log.",
    "wandb.",
    "tensorboard.",
    "train.timeout_seconds",
)


def check_same_run(config: Config, checkpoint: Checkpoint) -> None:
    """CheckpointError if the run cannot resume from its own checkpoint with `config`."""
    check_same(FIXED, config, checkpoint)
    _check_origin(config, checkpoint)
    _check_budget(config, checkpoint)


def check_same(prefixes: tuple[str, ...], config: Config, checkpoint: Checkpoint) -> None:
    """CheckpointError if a key with one of these prefixes differs from the checkpoint's configuration."""
    for key, saved, now in _differences(config, checkpoint):
        if key.startswith(prefixes):
            other = ", which may begin with these weights by run.start_from" if key.startswith("data.") else ""
            raise CheckpointError(
                f"{key} = {now} and the run's checkpoint was trained with {saved}; set it back, or give the changed "
                f"run another run.name{other}"
            )


def changes_line(config: Config, checkpoint: Checkpoint) -> str | None:
    """The changes since the checkpoint in one line; None if there are none."""
    changes = [f"{key} {saved} → {now}" for key, saved, now in _differences(config, checkpoint)]
    return f"Changed since the checkpoint: {', '.join(changes)}." if changes else None


def check_same_model(config: Config, configured: Plan, plan: Plan, checkpoint: Checkpoint) -> None:
    """CheckpointError if the weights of another run's `plan` compute another function than those of `configured`.

    Ranks, formats and sequence length may differ.
    """
    now, free = config.model.model_dump(mode="json"), kind_of(config.model).free_keys
    saved = _defaults(config).model.model_dump(mode="json") | checkpoint.run["config"].get("model", {})
    found = {f"model.{key}": (value, saved[key]) for key, value in now.items() if key not in free}
    found |= {name: (matrix_size(configured, name), matrix_size(plan, name)) for name in configured | plan}
    for name, (here, there) in found.items():
        if here != there:
            raise CheckpointError(
                f"{name} is {here} here and {there} in {checkpoint.folder}; set model and data as in "
                f"run.start_from = {config.run.start_from}"
            )


def check_vocabulary(
    checkpoint: Checkpoint, task: Task[Any] | Mixture, corpus: Path | str, processes: Processes
) -> None:
    """DataError if the data of `task`, read from `corpus`, have another vocabulary than the checkpoint's data.

    Data of equal sizes may mean different things by their numbers. Says so where a part cannot be compared.
    """
    if task.fingerprint == checkpoint.run["cursor"]["fingerprint"]:
        return
    known = _vocabulary_of(checkpoint)
    parts = {part: (found, known.get(part)) for part, found in task.vocabulary.items()}
    unknown = [part for part, both in parts.items() if None in both]
    differing = [part for part, (found, wanted) in parts.items() if part not in unknown and found != wanted]
    if differing:
        raise DataError(
            f"{corpus} differs in its {' and '.join(differing)} from the data that {checkpoint.folder} was trained on; "
            f"prepare it with the tokenizer, labels and dictionaries of those data"
        )
    if unknown:
        processes.say(
            f"{corpus} cannot be compared in its {' and '.join(unknown)} with the data that {checkpoint.folder} was "
            f"trained on, because an earlier version did not note it: make sure that it is the same."
        )


def _vocabulary_of(checkpoint: Checkpoint) -> Vocabulary:
    """The vocabulary in the checkpoint. In one of an earlier version it is missing: then that of its data, if any."""
    if "vocabulary" in checkpoint.run:
        return dict(checkpoint.run["vocabulary"])
    try:
        own = open_task(Config.model_validate(checkpoint.run["config"]))
    except (ComeraError, ValidationError):
        return {}
    return own.vocabulary if own.fingerprint == checkpoint.run["cursor"]["fingerprint"] else {}


def _differences(config: Config, checkpoint: Checkpoint) -> list[tuple[str, str, str]]:
    """Key, value at the checkpoint and value now, of all keys that have an effect on this kind of run."""
    usual = flat(_defaults(config).model_dump(mode="json"))
    # A checkpoint of an earlier version lacks keys that did not exist then, and was trained with their defaults.
    saved = usual | _without_idle(flat(checkpoint.run["config"]), _idle_keys(checkpoint))
    now = usual | _without_idle(flat(config.model_dump(mode="json")), idle_keys(config))
    keys = [*now, *(key for key in saved if key.startswith("deepspeed.") and key not in now)]
    return [
        (key, _shown(saved.get(key)), _shown(now.get(key)))
        for key in keys
        if saved.get(key) != now.get(key) and not key.startswith(WITHOUT_EFFECT)
    ]


def _idle_keys(checkpoint: Checkpoint) -> Collection[str]:
    """Keys and sections without effect, which an earlier version took without a word."""
    try:
        return idle_keys(Config.model_validate(checkpoint.run["config"]))
    except ValidationError:  # it has a key that no longer exists
        return ()


def _without_idle(values: dict[str, Any], idle: Collection[str]) -> dict[str, Any]:
    sections = tuple(f"{name}." for name in idle)
    return {key: value for key, value in values.items() if not (key in idle or key.startswith(sections))}


def _check_origin(config: Config, checkpoint: Checkpoint) -> None:
    """CheckpointError if first weights are named and are not those with which the run began."""
    began, named = _origin(checkpoint.run["config"]), _origin(config.model_dump(mode="json"))
    if config.run.start_from is not None and named != began:
        raise CheckpointError(
            f"run.start_from = {named} and the run has begun with {began}; set it back to go on, or give the new run "
            f"another run.name"
        )


def _origin(config: dict[str, Any]) -> str:
    """The first weights of a run in words; an earlier version had no key for a step."""
    run = config["run"]
    if run.get("start_from") is None:
        return "random weights"
    return str(run["start_from"]) + ("" if run.get("start_step") is None else f" at step {run['start_step']}")


def _check_budget(config: Config, checkpoint: Checkpoint) -> None:
    """CheckpointError if `train.tokens` is set and the steps so far were of other sizes than they are now.

    The budget is a number of steps of these sizes, so the run would end early or late.
    """
    step, read = checkpoint.manifest["step"], checkpoint.run["cursor"]["tokens"]
    rows = config.batch_sizes.before(step) + checkpoint.run.get("passed_over", 0)  # absent in earlier versions
    if config.train.tokens is not None and read != rows * config.row_tokens:
        batch = ("train.batch_tokens", "train.batch_size", "train.batch_ramp.start", "train.batch_ramp.steps")
        before = [f"{key}={saved}" for key, saved, _ in _differences(config, checkpoint) if key in batch]
        remedies = [f"set {' '.join(before)} as before"] * bool(before) + ["set train.steps in place of train.tokens"]
        raise CheckpointError(
            f"train.tokens = {config.train.tokens} counts steps of {config.step_tokens} tokens, and the run's "
            f"checkpoint has read {read} tokens in {step} steps; {', or '.join(remedies)}"
        )


def _defaults(config: Config) -> Config:
    """The defaults for this kind of model."""
    return Config(model=type(config.model).model_validate({}))


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
