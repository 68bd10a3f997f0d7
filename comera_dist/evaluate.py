"""Figures of a model on held-out rows."""

from comera_dist.data.batches import ValidationBatches
from comera_dist.data.tasks import Task
from comera_dist.runtime.engine import Engine


def validate(engine: Engine, batches: ValidationBatches, task: Task, split: str = "valid") -> dict[str, float]:
    """`loss` in nats a target and the task's other figures over the batches of all processes. Collective."""
    return task.figures(engine.measure(batches), split)
