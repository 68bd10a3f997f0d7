"""The rows of a run as one process reads them."""

from typing import NamedTuple

from comera_dist.config.tree import Config
from comera_dist.data.batches import Cursor, TrainBatches, ValidationBatches
from comera_dist.data.prefetch import Prefetch
from comera_dist.data.tasks import Task
from comera_dist.run.data_check import DataCheck
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together


class Feed:
    """Training batches, read one step ahead, and the batches of the split `valid`. Collective.

    The files of the data are hashed meanwhile: DataError on all processes if one of them is damaged.
    """

    def __init__(self, config: Config, task: Task, processes: Processes):
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
        self._prefetch = Prefetch(self.batches.step, config.global_batch)
        self.validation = ValidationBatches(
            task.held_out("valid"),
            micro_batch,
            processes.index,
            processes.count,
            config.eval.max_rows(config.row_tokens),
        )

    def step(self, rows_done: int) -> list[NamedTuple]:
        """This process's micro batches of the step after `rows_done` rows of all processes.

        Collective: DataError on all processes if one cannot read its rows.
        """
        # An all-reduce of its own and no part of the step's: the wait for the slowest reader is a wait for data.
        return together(lambda: self._prefetch.step(rows_done), self._processes)

    def cursor(self, rows_done: int) -> Cursor:
        return self.batches.cursor(rows_done)

    def resume(self, cursor: dict) -> int:
        """The rows that were done at a checkpoint's `cursor`. Raises DataError for other data or another seed."""
        return self.batches.resume(Cursor(**cursor))

    def close(self) -> None:
        self._prefetch.close()
        self.data_check.close()
