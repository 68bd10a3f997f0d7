"""The teacher of a run: a trained model whose predictions are a part of the loss."""

from typing import Any

from comera_dist.checkpoints.disk import folder_name
from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.tree import Config
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import CheckpointError, ConfigError
from comera_dist.models.family import kind_of
from comera_dist.run.compatibility import check_vocabulary
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.processes import Processes


def open_teacher(
    config: Config, task: Task[Any] | Mixture, own: Checkpoint | None, processes: Processes
) -> Trained | None:
    """The model of `train.teacher`, in evaluation mode, or None. Collective.

    A run that resumes from its checkpoint `own` has the same weights as before, also if its teacher was trained on.
    Raises CheckpointError, and DataError for a teacher of another vocabulary.
    """
    named = config.train.teacher.run
    if named is None:
        return None
    before = own and own.run.get("teacher")
    step = before["step"] if before and before["run"] == str(named) else None
    if step is not None and not processes.from_first((named / "checkpoints" / folder_name(step)).is_dir()):
        raise CheckpointError(
            f"train.teacher.run = {named} no longer has the checkpoint of step {step}, which has taught this run; "
            f"put it back, name another run to go on with that, or remove train.teacher to go on without a teacher"
        )
    teacher = load_trained(named, processes, step)
    check_vocabulary(teacher.checkpoint, task, config.data.described, processes)
    return teacher


def teacher_record(config: Config, teacher: Trained | None) -> dict[str, Any] | None:
    """What a checkpoint notes of the teacher, so that a resume finds the same weights."""
    if teacher is None:
        return None
    return {"run": str(config.train.teacher.run), "step": teacher.checkpoint.manifest["step"]}


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
