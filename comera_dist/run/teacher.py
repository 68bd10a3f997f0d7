"""The teacher of a run: a trained model whose predictions are a part of the loss."""

from pathlib import Path
from typing import Any

from comera_dist.checkpoints.disk import folder_name
from comera_dist.checkpoints.manifest import MANIFEST
from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.tree import Config
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import CheckpointError, ConfigError
from comera_dist.models.family import kind_of
from comera_dist.run.compatibility import check_vocabulary
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.processes import Processes
from comera_dist.storage.files import read_json


def open_teacher(
    config: Config, task: Task[Any] | Mixture, own: Checkpoint | None, processes: Processes
) -> Trained | None:
    """The model of `train.teacher`, in evaluation mode, or None. Collective.

    A run that resumes from its checkpoint `own` has the same weights as before, also if its teacher was trained on, or
    its folder has another name. With another teacher under the same name it is refused. `train.teacher.step` may name
    other weights.
    Raises CheckpointError, and DataError for a teacher of another vocabulary.
    """
    named = config.train.teacher.run
    if named is None:
        return None
    before = own.run.get("teacher") if own else None
    teacher = load_trained(named, processes, _step(named, config.train.teacher.step, before, processes))
    check_vocabulary(teacher.checkpoint, task, config.data.described, processes)
    return teacher


def _step(run: Path, step: int | None, before: dict[str, Any] | None, processes: Processes) -> int | None:
    """The step of the checkpoint that teaches, None for the newest one; `before` is what `teacher_record` noted."""
    if before is None or step not in (None, before["step"]):
        return step
    if processes.from_first(_has(run, before)):
        return int(before["step"])
    if before["run"] == str(run):
        raise CheckpointError(
            f"train.teacher.run = {run} no longer has the checkpoint of step {before['step']} that has taught this "
            f"run; put it back, name another run to go on with that, or remove train.teacher to go on without a teacher"
        )
    return step


def teacher_record(config: Config, teacher: Trained | None) -> dict[str, Any] | None:
    """What a checkpoint notes of the teacher, so that a resume finds the same weights."""
    if teacher is None:
        return None
    manifest = teacher.checkpoint.manifest
    return {"run": str(config.train.teacher.run), "step": manifest["step"], "sha256": manifest.get("sha256")}


def _has(run: Path, record: dict[str, Any]) -> bool:
    """Whether a run has the checkpoint that `teacher_record` noted: its folder may have moved, or be trained anew."""
    folder = run / "checkpoints" / folder_name(record["step"])
    if record.get("sha256") is None:  # noted by an earlier version
        return record["run"] == str(run) and folder.is_dir()
    # Unlike read_json, is_file raises an error of a file system that is away.
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else None
    return isinstance(manifest, dict) and manifest.get("sha256") == record["sha256"]


def teach(model: Any, teacher: Trained, config: Config) -> None:
    """Lets a model learn from its teacher. ConfigError if they predict other things, or read other rows."""
    named = f"train.teacher.run = {config.train.teacher.run}"
    found, expected = (type(one).__name__ for one in (teacher.model, model))
    if found != expected:
        raise ConfigError(f"{named} is a {found}, expected a {expected}; name another run")
    if teacher.model.outputs != model.outputs:
        raise ConfigError(
            f"{named} predicts one of {teacher.model.outputs} and the model one of {model.outputs}; set the sizes in "
            f"model as the config.yaml of that run has them"
        )
    model_of_teacher = teacher.config.model
    if problems := kind_of(model_of_teacher).problems(config.model_copy(update={"model": model_of_teacher})):
        raise ConfigError(f"{named} cannot read the rows of this run, because of its own model: {problems[0]}")
    model.learn_from(teacher.model, config.train.teacher.share)
