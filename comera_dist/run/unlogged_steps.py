"""The steps since the last log: the figures of their record, for this start or for one that resumes before it logs."""

from typing import Any

from comera_dist.config.tree import Config
from comera_dist.costs.utilization import utilization
from comera_dist.runtime.step import StepResult


class UnloggedSteps:
    """Knows seconds, rows and FLOPs of the steps since the last log, and figures of the last step.

    `result` is that of the last good step; after a resume it is None if that step was logged. `lr` is the learning rate
    of the last step. `peak_flops` is that of all devices in FLOP/s, None if nobody knows it.
    """

    def __init__(self, config: Config, peak_flops: float | None = None):
        self._config, self._peak_flops = config, peak_flops
        self.result: StepResult | None = None
        self.lr = 0.0
        self._seconds: list[tuple[float, float]] = []  # of each step: waiting for data, all
        self._rows = 0  # of all steps: a resume may change the batch
        self._flops = 0.0  # of all steps, each of the model as it then was

    def add(
        self, result: StepResult, lr: float, seconds: tuple[float, float], rows: int, flops_per_token: float
    ) -> None:
        """Adds a step of `rows` rows that took `seconds`, waiting for data and in all.

        `flops_per_token` is that of the model that made the step.
        """
        self.lr = lr
        if result.is_applied:
            self.result = result
        self._seconds.append(seconds)
        self._rows += rows
        self._flops += flops_per_token * rows * self._config.row_tokens

    def clear(self) -> None:
        """Forgets seconds, rows and FLOPs, which were logged."""
        self._seconds.clear()
        self._rows, self._flops = 0, 0.0

    def figures(self, flops_per_token: float) -> dict[str, Any]:
        """The figures of the last step; rates and times are means over all steps here.

        `flops_per_token` is that of the present model.
        """
        assert self.result is not None, "a step was made"
        steps = len(self._seconds)
        waited, seconds = (sum(column) / steps for column in zip(*self._seconds, strict=True))
        return {
            "targets": self.result.targets,
            "loss": self.result.loss,
            "lr": self.lr,
            "grad_norm": self.result.grad_norm,
            "tokens_per_second": self._rows * self._config.row_tokens / steps / seconds,
            "step_ms": 1000 * seconds,
            "flops_per_token": flops_per_token,
            **utilization(self._flops, seconds * steps, self._peak_flops),
            "data_wait_fraction": waited / seconds,
        }

    def seconds_left(self, step: int) -> float:
        """Seconds until the end of the run, if its rows take as long as those of the steps here, up to `step`."""
        sizes, spent = self._config.batch_sizes, sum(whole for _, whole in self._seconds)
        return spent / self._rows * (sizes.before(self._config.total_steps) - sizes.before(step))

    def state(self) -> dict[str, Any] | None:
        """JSON for a checkpoint of the last step; None before the first good one, and if all steps were logged."""
        if self.result is None or not self._seconds:
            return None
        figures = {"loss": self.result.loss, "grad_norm": self.result.grad_norm, "targets": self.result.targets}
        return {**figures, "lr": self.lr, "seconds": self._seconds, "rows": self._rows, "flops": self._flops}

    def load(self, state: dict[str, Any], step: int, flops_per_token: float) -> None:
        """Takes over the state of a checkpoint of step `step`, whose model needs `flops_per_token` FLOPs a token."""
        self.result = StepResult(state["loss"], state["grad_norm"], targets=state.get("targets"))
        self.lr = state["lr"]
        self._seconds = [(waited, whole) for waited, whole in state["seconds"]]
        # Checkpoints of earlier versions lack rows and FLOPs.
        rows, flops = state.get("rows"), state.get("flops")
        self._rows = self._rows_until(step) if rows is None else rows
        self._flops = flops_per_token * self._rows * self._config.row_tokens if flops is None else flops

    def _rows_until(self, step: int) -> int:
        """Rows that the steps here, the last of which is number `step`, have with the present configuration."""
        sizes = self._config.batch_sizes
        return sizes.before(step) - sizes.before(step - len(self._seconds))
