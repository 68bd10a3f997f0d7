"""The figures of a run as files: metrics.jsonl, ranks.jsonl, norms.jsonl and summary.json."""

from typing import Any

from comera_dist.costs.estimate import bond_ranks
from comera_dist.report.records import NormsMeasured, RanksSynced, Record, RunFinished, RunStarted, StepLogged
from comera_dist.storage.run_directory import RunDirectory


class LogFiles:
    """Writes every record with its step. A resumed run first drops the lines after the step that it resumes from.

    A line that cannot be written does not end the run: one message says that lines are missing.
    """

    def __init__(self, directory: RunDirectory):
        self._directory, self._is_complete = directory, True

    def __call__(self, record: Record) -> None:
        match record:
            case RunStarted():
                self._begin(record)
            case StepLogged():
                self._append("metrics.jsonl", record.figures)
            case RanksSynced():
                self._append("ranks.jsonl", record.figures)
            case NormsMeasured():
                self._append("norms.jsonl", record.figures)
            case RunFinished():
                self._directory.finish(record.summary)

    def _begin(self, start: RunStarted) -> None:
        self._directory.forget_after(start.step or -1)  # a run that starts anew drops the line of step 0 too
        if start.step == 0:
            self._directory.append("ranks.jsonl", {"step": 0, "ranks": bond_ranks(start.plan)})

    def _append(self, name: str, figures: dict[str, Any]) -> None:
        try:
            self._directory.append(name, figures)
        except OSError as error:
            if self._is_complete:
                print(
                    f"{self._directory.path}/{name} cannot be written ({error.strerror or error}); lines are missing "
                    f"in it from step {figures['step']} on, the run goes on.",
                    flush=True,
                )
            self._is_complete = False
