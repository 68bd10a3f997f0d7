"""The batches of a run as one process reads them."""

from typing import Any, NamedTuple

from comera_dist.config.tree import Config
from comera_dist.data.batches import TrainBatches
from comera_dist.data.mixture import Mixture
from comera_dist.data.prefetch import Prefetch
from comera_dist.data.tasks import Task
from comera_dist.run.data_check import DataCheck
from comera_dist.run.held_out import HeldOut
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together


class Feed:
    """Training batches, read one step ahead, and the split `valid`. Collective.

    Raises DataError on all processes if a file of the data is damaged (see DataCheck).
    """

    def __init__(self, config: Config, task: Task[Any] | Mixture, processes: Processes):
        self._processes = processes
        self.data_check = DataCheck(task.contents, processes)
        micro_batch = config.micro_batch(processes.count)
        self.batches = TrainBatches(
            task.train(),
            task.fingerprint,
            config.row_tokens,
            global_batch=config.global_batch,
            micro_batch=micro_batch,
            process_index=processes.index,
            num_processes=processes.count,
            seed=config.run.seed,
        )
        self._prefetch, self._sizes = Prefetch(self.batches.step), config.batch_sizes
        max_rows = config.eval.max_rows(config.row_tokens)
        self.validation = HeldOut(task, "valid", micro_batch, processes, max_rows)

    def step(self, step: int, rows_done: int) -> list[NamedTuple]:
        """This process's micro batches of the step that follows `step` steps, which read `rows_done` rows. Collective.

        Raises DataError on all processes if one cannot read its rows.
        """
        # Apart from the all-reduce of the step, so that waiting for the slowest reader is measured as waiting for data.
        rows = self._sizes.at(step), self._sizes.at(step + 1)
        return together(lambda: self._prefetch.step(rows_done, *rows), self._processes)

    def close(self) -> None:
        self._prefetch.close()
        self.data_check.close()
