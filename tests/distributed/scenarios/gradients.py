"""The gradients of a step whose micro batches differ in their numbers of targets, beside those of one plain pass."""

import torch
from torch import Tensor

from comera_dist.config.reader import read_config
from comera_dist.data.batches import TrainBatches
from comera_dist.errors import ComeraError
from comera_dist.models.family import build_model
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.run.train import Parts
from comera_dist.runtime.forward import count_targets
from scenarios.reading import Task
from scenarios.runs import open_run


class FewTargets:
    """Rows of which row number d of the run keeps its first d**3 % 17 targets; every row is empty if `kept` is 0."""

    def __init__(self, examples, kept: int = 17):
        self._examples, self._kept = examples, kept

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, row_B, draw_B):
        batch = self._examples.batch(row_B, draw_B)
        count_B1 = torch.from_numpy(draw_B**3 % 17).clamp(max=self._kept)[:, None]
        targets_BS = batch[-1].where(torch.arange(batch[-1].shape[1]) < count_B1, IGNORED_TARGET)
        return batch._replace(targets_BS=targets_BS)


def gradient_error(processes, overrides: list[str], is_text: bool = True, rows: int | None = None) -> list:
    """The largest error of a step's gradients, as a share of the largest gradient, that of its loss, and the targets of
    its micro batches. The step reads `rows` rows, or the whole batch.

    A step of plain SGD at its peak rate, which is 1, shows the gradients as the change of the weights.
    """
    config = read_config(None, overrides)
    own = {"train": lambda task: lambda: FewTargets(task.train())} if is_text else {}
    task, plans = Task(config, **own), []

    def build(plan, generator):
        plans.append(plan)
        return build_model(config.model, plan, generator)

    optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=1.0)  # noqa: E731
    session = open_run(processes, overrides, Parts(model=build, task=task, optimizer=optimizer))
    engine, batches = session.model.engine, session.feed.batches.step(0, rows)
    before = _weights(engine)
    result = engine.step(batches, lr=config.optim.lr)
    after = _weights(engine)
    session.close()
    loss, wanted = plain_gradients(config, task, plans[0], rows or config.global_batch)
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    errors = [float((before[name] - after[name] - wanted[name]).abs().max()) / largest for name in wanted]
    return [max(errors), abs(result.loss - loss), list(map(count_targets, batches))]


def plain_gradients(config, task: Task, plan, size: int) -> tuple[float, dict[str, Tensor]]:
    """The mean loss over all targets of the run's first `size` rows, read as one batch, and its gradients."""
    (batch,) = TrainBatches(task.train(), "", 1, size, size, 0, 1, config.run.seed).step(0)
    model = build_model(config.model, plan, torch.Generator().manual_seed(config.run.seed))
    loss = model(*batch) / count_targets(batch)
    loss.backward()
    return float(loss), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def step_without_targets(processes, overrides: list[str]) -> str:
    """The error of a step none of whose rows has a target."""
    config = read_config(None, overrides)
    task = Task(config, train=lambda task: lambda: FewTargets(task.train(), kept=0))
    session = open_run(processes, overrides, Parts(task=task))
    try:
        session.train_step(False)
        return "no error"
    except ComeraError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        session.close()


def _weights(engine) -> dict[str, Tensor]:
    return {name: tensors["weight"] for name, tensors in engine.state().items()}
