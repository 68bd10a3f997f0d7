"""Records of a run as lines for a person."""

import math
from pathlib import Path
from typing import Any

from comera_dist.config.tree import Config


def step_line(record: dict[str, Any], config: Config, seconds_left: float, compression: float) -> str:
    """A logged step. `compression` is dense over stored parameters."""
    total_steps = config.total_steps
    done = f"{record['step']:>{len(str(total_steps))}}/{total_steps}"
    line = (
        f"step {done} {record['step'] / total_steps:4.0%} | loss {record['loss']:.4f} | lr {record['lr']:.2e} | "
        f"grad {record['grad_norm']:.2f} | {record['tokens_per_second']:,.0f} {config.unit}/s | {_speed(record)} | "
        f"{size_beside_dense(compression, digits=1)} | ETA {in_clock(seconds_left)}"
    )
    return line + (f" | val {record['val_loss']:.4f}" if "val_loss" in record else "")


def _speed(record: dict[str, Any]) -> str:
    """Achieved FLOP/s, and the share of the peak if that is known."""
    share = f" (MFU {record['mfu']:.0%})" if "mfu" in record else ""
    return f"{flops_in_words(record['flops_per_second'])}FLOP/s{share}"


def flops_in_words(flops: float) -> str:
    """FLOPs with three digits and a prefix, to be followed by the unit: "1.35 G"."""
    for prefix in ("", "k", "M", "G", "T"):
        if flops < 999.5:
            return f"{flops:.3g} {prefix}"
        flops /= 1000
    return f"{flops:,.3g} P" if flops < 999.5 else f"{flops:,.0f} P"


def ranks_line(record: dict[str, Any]) -> str:
    """A sync of the rank gates."""
    target = f", target {record['target']:,.0f}" if record["target"] else ""
    line = f"ranks at step {record['step']}: {record['stage']} stage, adapted layers hold {record['size']:,.0f}{target}"
    if record["cut"] or record["added"]:
        line += f" | {record['cut']} indices cut, {record['added']} added in {record['rebuild_seconds']:.1f} s"
    return line


def summary_lines(summary: dict[str, Any], directory: Path) -> str:
    """The end of a run."""
    plots = ", ".join(sorted(path.name for path in (directory / "plots").glob("*.png")))
    verdict = summary.get("adaptation", {}).get("verdict")
    lines = [
        f"{_result(summary)} after {summary['tokens']:,} {summary.get('unit', 'tokens')} "
        f"in {in_clock(summary['wall_seconds'])}.",
        f"Compression: {summary['params']:,} parameters instead of {summary['dense_params']:,}, "
        f"{size_beside_dense(summary['compression'])}.",
        (f"Plots: {directory}/plots/{plots}; figures" if plots else "Figures")
        + f": {directory}/summary.json and metrics.jsonl.",
    ]
    return "\n".join(lines + _best(summary) + [verdict] * bool(verdict))


def _best(summary: dict[str, Any]) -> list[str]:
    step = summary.get("best_step")  # absent without checkpoint.keep_best, null if no validation counted
    return [] if step is None else [f"Lowest validation loss: at step {step}, whose checkpoint stays (--step {step})."]


def _result(summary: dict[str, Any]) -> str:
    loss = summary["val_loss"]
    if loss is None or not math.isfinite(loss):  # None: JSON has no number for it
        return "Ended without a result: the validation loss is not finite, so the weights have diverged,"
    others = {key[4:]: value for key, value in summary.items() if key.startswith("val_") and key != "val_loss"}
    figures = ", ".join(f"{name} {figure_in_words(value)}" for name, value in others.items())
    return f"Done: validation loss {loss:.4f}" + (f" ({figures})" if figures else "")


def size_beside_dense(compression: float, digits: int = 2) -> str:
    """Dense over stored parameters in words: "4.49× smaller", "1.25× larger than dense", "as large as dense"."""
    if round(compression, digits) == 1:
        return "as large as dense"
    smaller = compression > 1
    return f"{compression:.{digits}f}× smaller" if smaller else f"{1 / compression:.{digits}f}× larger than dense"


def figure_in_words(value: float | None) -> str:
    return "undefined, all rows have one label" if value is None else f"{value:.4f}"


def in_clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
