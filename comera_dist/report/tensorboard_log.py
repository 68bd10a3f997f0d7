"""A run for TensorBoard. The only file that imports torch.utils.tensorboard.

TensorBoard must not end a run: its first error is printed, and the run goes on without it.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from comera_dist.config.tree import Config
from comera_dist.errors import ConfigError, first_line
from comera_dist.report.live_pictures import due_picture
from comera_dist.report.records import (
    NormsMeasured,
    RanksSynced,
    Record,
    RunEnded,
    RunFinished,
    RunStarted,
    StepLogged,
    curves_of,
    numbers_of,
)
from comera_dist.storage.run_directory import RunDirectory

if TYPE_CHECKING:  # importing it takes a second, and its package is not always installed
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"  # in the run's directory


def check_installed(config: Config) -> None:
    """ConfigError if the run shall write for TensorBoard and its package is missing."""
    if config.tensorboard.enabled and find_spec("tensorboard") is None:
        raise ConfigError(
            "tensorboard.enabled = true needs the package tensorboard, which is not installed; run `pip install "
            "tensorboard`, or set tensorboard.enabled=false"
        )


class TensorboardLog:
    """Writes the numbers of every record, those of a sync of ranks below `ranks/`, and plots when they are drawn.

    A resumed run goes on with its curves: TensorBoard leaves out steps that an earlier start made after the checkpoint.
    """

    def __init__(self, config: Config, directory: RunDirectory):
        self._config, self._directory, self._folder = config, directory, directory.path / FOLDER
        self._writer: SummaryWriter | None = None

    def __call__(self, record: Record) -> None:
        match record:
            case RunStarted() if self._config.tensorboard.enabled:
                self._try(lambda: self._open(record.step))
            case StepLogged(figures):
                self._try(lambda: self._add(numbers_of(figures), figures["step"]))
            case RanksSynced(figures) | NormsMeasured(figures):
                self._try(lambda: self._add(curves_of(record), figures["step"]))
            case RunFinished(summary):
                self._try(lambda: self._show("*", summary["step"]))
            case RunEnded():
                self._try(self._close)
        if (due := due_picture(record, self._config)) is not None:
            self._try(lambda: self._show(due.name, due.step))

    def _open(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=step + 1)

    def _add(self, numbers: dict[str, int | float], step: int) -> None:
        if self._writer is not None:
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, step)
            # A checkpoint may follow: a start that resumes from it does not write these steps again.
            self._writer.flush()

    def _show(self, pattern: str, step: int) -> None:
        """Writes the plots whose names match `pattern` as they were drawn last."""
        if self._writer is not None:
            from matplotlib.image import imread

            for path in sorted(self._directory.plots.glob(f"{pattern}.png")):
                self._writer.add_image(f"plots/{path.stem}", imread(path)[..., :3], step, dataformats="HWC")
            self._writer.flush()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception as error:  # of any class: the run is worth more than its report
            self._writer = None
            print(f"TensorBoard is written no more ({first_line(error)}); the run goes on without it.", flush=True)
