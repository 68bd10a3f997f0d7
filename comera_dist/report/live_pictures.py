"""The heat maps that are drawn while a run goes on."""

from typing import NamedTuple

from comera_dist.config.tree import Config
from comera_dist.report.records import NormsMeasured, RanksSynced, Record

PICTURES = 10  # of one kind in a run; chosen: as many as validations by default


class DuePicture(NamedTuple):
    name: str
    step: int


def due_picture(record: Record, config: Config) -> DuePicture | None:
    """The plot that is drawn anew at this record; None if none is due.

    This depends on the step alone, so a resumed run draws at the same steps.
    """
    if isinstance(record, RanksSynced):
        name, every = "ranks", config.ranks.sync_every
    elif isinstance(record, NormsMeasured):
        name, every = "updates", config.log.norms_every
    else:
        return None
    step, between = record.figures["step"], every * max(1, config.total_steps // (PICTURES * every))
    return DuePicture(name, step) if config.log.plots and step % between == 0 else None
