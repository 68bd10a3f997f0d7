"""What of its configuration a run may change between its checkpoint and its next start."""

from typing import Any

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.tree import Config, Data
from comera_dist.errors import CheckpointError
from comera_dist.models.family import kind_of

# What a row is, what the model computes, and how its ranks adapt.
FIXED = ("data.", "model.", "tensor.", "ranks.")
# Nothing that is trained depends on them. The corpus and run.seed are compared with the checkpoint's cursor.
WITHOUT_EFFECT = ("run.", "data.corpus", "eval.", "checkpoint.", "log.", "wandb.", "train.timeout_seconds")
BATCH = ("train.batch_tokens", "train.batch_size")

Values = dict[str, Any]  # by "section.key"


def check_same_run(config: Config, checkpoint: Checkpoint) -> None:
    """CheckpointError where the run cannot go on from its checkpoint as `config` says."""
    check_same(FIXED, config, checkpoint)
    _check_budget(config, checkpoint)


def check_same(prefixes: tuple[str, ...], config: Config, checkpoint: Checkpoint) -> None:
    """CheckpointError where a key with one of these prefixes is not as the checkpoint was trained."""
    for key, saved, now in _differences(config, checkpoint):
        if key.startswith(prefixes):
            other = ", which may begin with these weights by run.start_from" if key.startswith("data.") else ""
            raise CheckpointError(
                f"{key} = {now} and the run's checkpoint was trained with {saved}; set it back, or give the changed "
                f"run another run.name{other}"
            )


def changes_line(config: Config, checkpoint: Checkpoint) -> str | None:
    """What has changed since the checkpoint, in one line; None where nothing has."""
    changes = [f"{key} {saved} → {now}" for key, saved, now in _differences(config, checkpoint)]
    return f"Changed since the checkpoint: {', '.join(changes)}." if changes else None


def _differences(config: Config, checkpoint: Checkpoint) -> list[tuple[str, str, str]]:
    """Key, value at the checkpoint and value now, of all keys that have an effect on this kind of run."""
    # A checkpoint of an earlier version lacks what did not exist then, and was trained as the defaults say.
    defaults = Config(model=type(config.model)())
    saved, now = _flat(_json(defaults)) | _flat(checkpoint.run["config"]), _flat(_json(config))
    keys = [*now, *(key for key in saved if key.startswith("deepspeed.") and key not in now)]
    return [
        (key, _said(saved.get(key)), _said(now.get(key)))
        for key in keys
        if saved.get(key) != now.get(key) and not key.startswith(WITHOUT_EFFECT) and key not in _unread(config)
    ]


def _unread(config: Config) -> set[str]:
    """Keys of `data` that the rows of this kind of model do not depend on."""
    read = kind_of(config.model).row_keys(config)
    return {f"data.{key}" for key in Data.model_fields if key not in read}


def _check_budget(config: Config, checkpoint: Checkpoint) -> None:
    """A budget of tokens is a number of steps of one size: with another size behind it, it would end early or late."""
    step, read = checkpoint.manifest["step"], checkpoint.run["cursor"]["tokens"]
    if config.train.tokens is not None and read != step * config.step_tokens:
        before = [f"{key}={saved}" for key, saved, _ in _differences(config, checkpoint) if key in BATCH]
        remedies = [f"set {' '.join(before)} as before"] * bool(before) + ["set train.steps in place of train.tokens"]
        raise CheckpointError(
            f"train.tokens = {config.train.tokens} counts steps of {config.step_tokens} tokens, and the run's "
            f"checkpoint has read {read} tokens in {step} steps; {', or '.join(remedies)}"
        )


def _json(config: Config) -> dict:
    return config.model_dump(mode="json")


def _flat(tree: dict, prefix: str = "") -> Values:
    values: Values = {}
    for key, value in tree.items():
        values |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def _said(value: Any) -> str:
    return "null" if value is None else str(value)
