"""The keys in which configurations of runs differ."""

import json
from typing import Any

from comera_dist.report.compare.figures import MISSING
from comera_dist.report.compare.run_files import RunFiles
from comera_dist.report.html.page import Row

OF_THE_DATA = ("data.corpus", "data.mixture")
OF_THE_FOLDER = ("run.name", "run.directory")  # every run has others


def configuration_differences(runs: list[RunFiles]) -> list[Row]:
    """A row for each key whose values differ; a run of another kind or version may lack the key."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key not in OF_THE_FOLDER)
    rows = [Row(key, [_shown(run.config, key) for run in runs]) for key in keys]
    return [row for row in rows if len(set(row.cells)) > 1]


def reads_other_data(differences: list[Row]) -> bool:
    """Whether the runs read different corpora, which may have other tokens."""
    return any(row.name in OF_THE_DATA for row in differences)


def learns_otherwise(runs: list[RunFiles]) -> bool:
    """Whether training losses are of other things, because teachers are parts of them."""
    lessons = [tuple(run.config.get(f"train.teacher.{key}") for key in ("run", "step", "share")) for run in runs]
    return len({lesson if lesson[0] else None for lesson in lessons}) > 1


def _shown(config: dict[str, Any], key: str) -> str:
    if key not in config:
        return MISSING
    value = config[key]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
