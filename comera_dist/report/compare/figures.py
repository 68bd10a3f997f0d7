"""The final figures of runs as rows of a table; for an unfinished run those of its last record."""

from collections.abc import Callable
from typing import Any

from comera_dist.report.compare.run_files import RunFiles, units_of
from comera_dist.report.html.page import Row
from comera_dist.report.lines import flops_in_words, in_clock, size_beside_dense
from comera_dist.report.rank_report import median_at
from comera_dist.storage.files import is_finite_number

MISSING = "–"


def figure_rows(runs: list[RunFiles]) -> list[Row]:
    """Rows of which at least one run has the figure."""
    found = [Row(name, [_cell(figure, run) for run in runs]) for name, figure in _figures(runs).items()]
    return [row for row in found if set(row.cells) != {MISSING}]


def _figures(runs: list[RunFiles]) -> dict[str, Callable[[RunFiles], str | None]]:
    """Functions that tell a figure of a run in words, None if the run does not have it."""
    units = units_of(runs)
    one = " or ".join(unit.removesuffix("s") for unit in units.split(" or "))
    others = sorted({key for run in runs for key in _validated(run)} - {"val_loss"})
    return {
        "progress": _progress,
        "data read": lambda run: f"{run.records[-1]['tokens']:,} {run.unit}",
        "validation loss": lambda run: f"{_validated(run)['val_loss']:.4f}",
        **{_words(key): (lambda run, key=key: f"{_validated(run)[key]:.4f}") for key in others},  # type: ignore[misc]
        "training loss": lambda run: f"{run.records[-1]['loss']:.4f}",
        "parameters": lambda run: f"{run.records[-1]['params']:,}",
        "parameters of the dense model": lambda run: f"{run.summary['dense_params']:,}",
        "size": lambda run: size_beside_dense(run.summary["compression"]),
        f"training FLOPs per {one}": lambda run: flops_in_words(run.records[-1]["flops_per_token"]),
        "achieved FLOP/s": lambda run: flops_in_words(_typical(run, "flops_per_second")),
        "share of the peak (MFU)": lambda run: f"{_typical(run, 'mfu'):.1%}",
        f"{units} a second": lambda run: f"{_typical(run, 'tokens_per_second'):,.0f}",
        "milliseconds a step": lambda run: f"{_typical(run, 'step_ms'):,.1f}",
        "peak memory of the first process": lambda run: _mebibytes(max(run.column("peak_memory_bytes")[1])),
        "time of all starts": lambda run: in_clock(run.summary["wall_seconds"]),
        "processes": lambda run: str(run.facts["world_size"]),
        "starts": lambda run: str(len(run.facts["starts"])),
        "commit": lambda run: str(run.facts["git"])[:12] if run.facts["git"] else None,
    }


def _cell(figure: Callable[[RunFiles], str | None], run: RunFiles) -> str:
    try:
        return figure(run) or MISSING
    except (LookupError, TypeError, ValueError, AttributeError):  # the run does not have it, or somebody changed it
        return MISSING


def _progress(run: RunFiles) -> str:
    if run.summary:
        return "finished"
    if not run.records:
        return "no step is logged"
    last, steps, tokens = run.records[-1], run.config.get("train.steps"), run.config.get("train.tokens")
    done = last["step"] / steps if steps else last["tokens"] / tokens if tokens else None
    return f"step {last['step']:,}" + (f", {done:.0%}" if done is not None else "")


def _validated(run: RunFiles) -> dict[str, Any]:
    """The figures of the last validation."""
    validated = (record for record in reversed(run.records) if "val_loss" in record)
    source = run.summary or next(validated, {})
    return {key: value for key, value in source.items() if key.startswith("val_")}


def _typical(run: RunFiles, key: str) -> float:
    """The median of the intervals in which the model had its last size, else the last record's figure."""
    held = [record for record in run.records if is_finite_number(record.get(key))]
    found = median_at(held, held[-1]["params"], key)
    last: float = held[-1][key]
    return last if found is None else found


def _words(key: str) -> str:
    return "validation " + key.removeprefix("val_").replace("_", " ")


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"
