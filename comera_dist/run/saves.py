"""The checkpoints of one start of a run: the newest whole one, the one on its way, the best one, and their copies."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comera_dist.checkpoints.disk import folder_name
from comera_dist.checkpoints.mirror import Mirror
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.write import Savable, Saver
from comera_dist.config.tree import Checkpoint as CheckpointSection
from comera_dist.run.patience import Patience
from comera_dist.runtime.processes import Processes


@dataclass
class Saves:
    """Knows how far the saves of a run are. Methods are collective, but those that only ask.

    `saved_step` is the newest step whose checkpoint is whole, `begun_step` the last one that began to be saved.
    """

    config: CheckpointSection
    checkpoints: Path
    processes: Processes
    saver: Saver
    kept: Kept
    mirror: Mirror | None  # of the first process, where one is configured
    patience: Patience  # knows the step of the lowest validation loss
    saved_step: int | None = None
    begun_step: int | None = None
    _begun_at: float = field(default_factory=time.monotonic)

    def resume(self, step: int) -> None:
        """Notes the checkpoint from which the run goes on."""
        self.saved_step = self.begun_step = step

    def find_best(self) -> None:
        """With checkpoint.keep_best: lets the best checkpoint of earlier starts stay, or says that it is gone."""
        self.kept.best, step = None, self.patience.best_step
        if not self.config.keep_best or step is None:
            return
        if self.processes.from_first((self.checkpoints / folder_name(step)).is_dir()):
            self.kept.best = step
        else:
            self.processes.say(
                f"The checkpoint of step {step}, which had the lowest validation loss ({self.patience.best:.4f}), is "
                f"not there; the next one with a lower loss is kept."
            )

    def is_overdue(self) -> bool:
        """Whether a checkpoint is due by the time since the last one began."""
        minutes = self.config.every_minutes
        return minutes > 0 and time.monotonic() - self._begun_at >= 60 * minutes

    def is_best(self, step: int) -> bool:
        """Whether the checkpoint of `step` is to stay as the one with the lowest validation loss."""
        return self.config.keep_best and self.patience.best_step == step

    def begin(self, step: int, engine: Savable, record: dict[str, Any]) -> None:
        """Begins to save a checkpoint with the caller's JSON `record`; see `Saver.begin`."""
        self.saver.begin(step, engine, record)
        self.begun_step, self._begun_at = step, time.monotonic()

    def note(self, is_needed: bool = False) -> int | None:
        """Notes whether a save has ended, and returns its step; waits for its end if `is_needed`.

        Raises CheckpointError if it failed.
        """
        saved = self.saver.wait() if is_needed else self.saver.poll()
        self.saved_step = self.saved_step if saved is None else saved
        self.keep_best()
        if self.mirror is not None:
            self.mirror.tick()
            if saved is not None:
                self.mirror.send(self.checkpoints / folder_name(saved))
        return saved

    def keep_best(self) -> None:
        """Lets the best checkpoint stay, once it is whole; until then an earlier one stays."""
        if self.saved_step is not None and self.is_best(self.saved_step):
            self.kept.best = self.saved_step

    def close(self, mirror_seconds: float) -> None:
        """Waits for the mirror for `mirror_seconds`."""
        if self.mirror is not None:
            self.mirror.close(mirror_seconds)
