"""The effect of rank adaptation: planned and final figures side by side, as plain data."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from statistics import median
from typing import Any

from comera_dist.costs.estimate import Estimate, bond_ranks
from comera_dist.formats.plan import Plan


@dataclass(frozen=True)
class LayerChange:
    """A layer as planned and at the end. `final_ranks` and `compression` are None if it was removed.

    `compression` is dense over stored parameters. FLOPs are of one token's forward pass, without merging cores.
    """

    name: str
    planned_ranks: list[int]
    final_ranks: list[int] | None
    planned_parameters: int
    final_parameters: int
    compression: float | None
    planned_flops: int
    final_flops: int


def layer_changes(planned: Plan, final: Plan, adapted: tuple[str, ...]) -> list[LayerChange]:
    """The layers whose names match a shell-style pattern of `adapted`, in the order of the model."""
    ranks_after = bond_ranks(final)
    return [
        LayerChange(
            name,
            ranks,
            ranks_after.get(name),
            planned[name].parameters,
            final[name].parameters,
            final[name].dense_parameters / final[name].parameters if name in ranks_after else None,
            planned[name].flops_per_token,
            final[name].flops_per_token,
        )
        for name, ranks in bond_ranks(planned).items()
        if ranks and any(fnmatchcase(name, pattern) for pattern in adapted)
    ]


def adaptation_figures(
    verdict: str | None,
    planned: Estimate,
    final: Estimate,
    metrics: list[dict[str, Any]],
    syncs: list[dict[str, Any]],
) -> dict[str, Any]:
    """The `adaptation` of summary.json, from the records of metrics.jsonl and ranks.jsonl."""
    rebuilds = [record["rebuild_seconds"] for record in syncs if "rebuild_seconds" in record]
    return {
        "verdict": verdict,
        "initial_params": planned.params,
        "final_params": final.params,
        "tokens_per_second_before": median_at(metrics, planned.params, "tokens_per_second"),
        "tokens_per_second_after": median_at(metrics, final.params, "tokens_per_second"),
        "flops_per_token_before": planned.flops_per_token,
        "flops_per_token_after": final.flops_per_token,
        "gradient_bytes_before": planned.gradient_bytes_per_step,
        "gradient_bytes_after": final.gradient_bytes_per_step,
        "rebuilds": len(rebuilds),
        "rebuild_seconds": sum(rebuilds),
    }


def median_at(metrics: list[dict[str, Any]], params: int, key: str) -> float | None:
    """Median of the figure `key` while the model stored `params` parameters, None if that was not measured.

    A record's rates and times cover the steps since the previous record, so both records must have this size. This also
    leaves out the run's first record, which includes the warm-up.
    """
    sized = [after for before, after in pairwise(metrics) if before["params"] == after["params"] == params]
    return median(record[key] for record in sized) if sized else None
