"""A run on the console."""

from comera_dist.config.tree import Config
from comera_dist.costs.oversize import oversize_line
from comera_dist.report.lines import ranks_line, step_line, summary_lines
from comera_dist.report.records import RanksSynced, Record, RunFinished, RunStarted, StepLogged
from comera_dist.report.tables import show_adaptation, show_estimate
from comera_dist.storage.run_directory import RunDirectory


class ConsoleLog:
    """Prints the model before the first step, a line for every record, and the result."""

    def __init__(self, config: Config, directory: RunDirectory):
        self._config, self._directory = config, directory

    def __call__(self, record: Record) -> None:
        match record:
            case RunStarted():
                show_estimate(record.config, record.estimate, record.num_processes)
                if (line := oversize_line(record.config, record.plan)) is not None:
                    print(line, flush=True)
            case StepLogged():
                print(step_line(record.figures, self._config, record.seconds_left, record.compression), flush=True)
            case RanksSynced():
                print(ranks_line(record.figures), flush=True)
            case RunFinished():
                if record.adaptation is not None:
                    show_adaptation(*record.adaptation, self._config.unit)
                print(summary_lines(record.summary, self._directory.path), flush=True)
