"""How a run has ended, as figures."""

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate, bond_ranks
from comera_dist.formats.plan import Plan
from comera_dist.report.rank_report import adaptation_figures, layer_changes
from comera_dist.report.records import AdaptationReport, RunFinished
from comera_dist.storage.run_directory import RunDirectory


def finished_record(
    config: Config,
    validation: dict[str, float],
    plan: Plan,
    estimate: Estimate,
    tokens: int,
    wall_seconds: float,
    adaptation: AdaptationReport | None,
) -> RunFinished:
    """`validation` holds the last figures of the split `valid`, `estimate` those of the final `plan`."""
    summary = {
        **{f"val_{name}": figure for name, figure in validation.items()},
        "params": estimate.params,
        "dense_params": estimate.dense_params,
        "compression": estimate.compression,
        "tokens": tokens,
        "unit": config.unit,
        "wall_seconds": wall_seconds,
        "ranks": bond_ranks(plan),
    }
    if adaptation is not None:
        summary["adaptation"] = adaptation.figures
    return RunFinished(summary, adaptation)


def adaptation_report(
    verdict: str | None,
    plans: tuple[Plan, Plan],
    estimates: tuple[Estimate, Estimate],
    adapted: tuple[str, ...],
    directory: RunDirectory,
) -> AdaptationReport:
    """`plans` and `estimates` are those of the planned and the final model; speeds are read from the run's logs."""
    figures = adaptation_figures(verdict, *estimates, directory.read("metrics.jsonl"), directory.read("ranks.jsonl"))
    return AdaptationReport(layer_changes(*plans, adapted), *estimates, figures)
