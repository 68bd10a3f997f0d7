"""Predictions for clusters, and of the largest models that fit, as tables for a person."""

from comera_dist.config.tree import Config
from comera_dist.costs.largest import Sized
from comera_dist.costs.scale import USABLE, ScalePlan
from comera_dist.report.tables import WIDE, show_table


def show_scale(config: Config, plan: ScalePlan) -> None:
    """Time, memory, traffic and efficiency of each side at each ZeRO stage, and what each side needs."""
    rows = [
        (
            row.side,
            str(row.zero_stage),
            *(f"{1000 * seconds:,.1f}" for seconds in (row.seconds, row.compute, row.update, row.exchange)),
            f"{row.memory_bytes / 1e9:,.1f}" + ("" if row.fits else ", too much"),
            f"{row.sent_bytes / 1e9:,.3f}",
            f"{row.tokens_per_second:,.0f}",
            f"{row.efficiency:.2f}",
        )
        for row in plan.rows
    ]
    times = ["step ms", "computing", "updating", "exchanging"]
    headings = ["<", "ZeRO", *times, "GB a GPU", "GB sent a GPU", f"{config.unit}/s", "efficiency"]
    cluster = plan.cluster
    title = f"{config.run.name}: {cluster.nodes} node(s) of {cluster.per_node} {cluster.machine.name}"
    show_table(headings, rows, WIDE, title)
    for side, needs in plan.needs.items():
        print(f"{side.capitalize()}: {needs}.")
    print(
        f"Weak scaling: every GPU makes the step that the configuration gives to one process, so the batch of all is "
        f"{plan.step_tokens:,} {config.unit}; efficiency compares with one GPU at the same stage, whether it fits or "
        f"not."
    )
    print(f"All figures are {plan.basis}; docs/scale.md has the model and its check.")


def show_largest(config: Config, found: dict[float, list[Sized]]) -> None:
    """The widest model of each side for each size of a GPU's memory."""
    for size, models in found.items():
        rows = [
            (
                model.side,
                f"{model.width:,}",
                f"{model.params / 1e9:,.2f}",
                f"{model.dense_params / 1e9:,.2f}",
                f"{model.state_bytes / 1e9:,.1f}",
                f"{model.peak_bytes / 1e9:,.1f}",
            )
            for model in models
        ]
        headings = ["<", "width", "10⁹ parameters", "10⁹ if dense", "GB of state", "GB at the peak"]
        show_table(headings, rows, WIDE, f"{config.run.name}: the widest model that trains in {size:g} GB")
    print(
        f"Depth, head size, ratio of d_ff to the width, ranks, micro batch, precision and activation checkpointing are "
        f"those of the run. {USABLE:.0%} of the memory is for tensors. Predicted for one process at ZeRO stage 0; "
        f"docs/arena.md has the check of such predictions on a CPU."
    )
