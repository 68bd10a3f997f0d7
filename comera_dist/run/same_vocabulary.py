"""Whether other data mean by their numbers what the data of a checkpoint mean: equal sizes do not say so."""

from pathlib import Path

from pydantic import ValidationError

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.tree import Config
from comera_dist.data.tasks import Task, open_task
from comera_dist.data.vocabulary import Vocabulary
from comera_dist.errors import ComeraError, DataError
from comera_dist.runtime.processes import Processes


def check_vocabulary(checkpoint: Checkpoint, task: Task, corpus: Path, processes: Processes) -> None:
    """DataError where the data of `task`, which lie at `corpus`, have another vocabulary than the checkpoint's.

    Says so where a part of it cannot be compared.
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
    """From the checkpoint; where an earlier version wrote it, from its data, and nothing where they are gone."""
    if "vocabulary" in checkpoint.run:
        return checkpoint.run["vocabulary"]
    try:
        own = open_task(Config.model_validate(checkpoint.run["config"]))
    except (ComeraError, ValidationError):
        return {}
    return own.vocabulary if own.fingerprint == checkpoint.run["cursor"]["fingerprint"] else {}
