"""Figures of a model, of a step and of an evaluation as tables for a person."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate
from comera_dist.costs.step_costs import LayerCost
from comera_dist.formats.base import Resizable
from comera_dist.formats.plan import Plan
from comera_dist.report.lines import figure_in_words
from comera_dist.report.rank_report import LayerChange

WIDTH = 110
WIDE = 160  # for a row a layer


def show_estimate(config: Config, figures: Estimate, num_processes: int) -> None:
    """The numbers that describe the model, as a table."""
    table = Table(title=f"{config.run.name}: {num_processes} process(es), ZeRO stage {config.train.zero_stage}")
    for column in ("", "this run", "dense twin"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("parameters", f"{figures.params:,}", f"{figures.dense_params:,}")
    table.add_row("compression", _compression(figures.compression), "1×")
    table.add_row("  of the matrices", _compression(figures.matrix_compression), "1×")
    table.add_row("bytes", _bytes(figures.size_bytes), _bytes(4 * figures.dense_params))
    table.add_row(
        f"training FLOPs per {config.unit.removesuffix('s')}",
        f"{figures.flops_per_token:,.0f}",
        f"{figures.dense_flops_per_token:,.0f}",
    )
    table.add_row("weights, gradients, optimizer per process", _bytes(figures.state_bytes_per_process), "")
    table.add_row(
        "gradient bytes sent per step and process",
        _bytes(figures.gradient_bytes_per_step),
        _bytes(figures.dense_gradient_bytes_per_step),
    )
    Console(width=WIDTH).print(table)


def show_parts(figures: Estimate) -> None:
    """One row a part of the model: what it stores."""
    table = Table()
    table.add_column("stored parameters")
    table.add_column("", justify="right")
    for part, numbers in figures.parts.items():
        table.add_row(part, f"{numbers:,}")
    Console(width=WIDTH).print(table)


def show_layers(plan: Plan) -> None:
    """One row a weight matrix: its modes, ranks and size."""
    table = Table()
    for column in ("layer", "in → out", "modes", "ranks", "parameters", "compression"):
        table.add_column(column, justify="left" if column in ("layer", "modes", "ranks") else "right")
    for name, layer in plan.items():
        table.add_row(
            name,
            f"{layer.inputs} → {layer.outputs}",
            layer.description,
            _ranks((1, *layer.bonds, 1)) if isinstance(layer, Resizable) else "",
            f"{layer.parameters:,}",
            _compression(layer.dense_parameters / layer.parameters),
        )
    Console(width=WIDE).print(table)


def show_plans(costs: list[LayerCost], tokens: int, unit: str, device: str) -> None:
    """One row a kind of layer: its path, FLOPs, bytes and share of a forward and backward pass over so many tokens."""
    table = Table(title=f"forward and backward over {tokens:,} {unit}, planned for {device}")
    for column in ("layer", "layers", "path", "FLOPs", "bytes moved", "share of FLOPs"):
        table.add_column(column, justify="left" if column in ("layer", "path") else "right")
    for cost in costs:
        table.add_row(
            cost.name,
            str(cost.count),
            cost.path,
            f"{cost.flops:,}",
            _bytes(cost.bytes_moved),
            f"{cost.share:.1%}",
        )
    Console(width=WIDE).print(table)


def show_adaptation(layers: list[LayerChange], planned: Estimate, final: Estimate, figures: dict, unit: str) -> None:
    """What rank adaptation has changed, layer by layer and in all; `figures` are the summary's `adaptation`."""
    table = Table(title="Rank adaptation, from plan to end")
    flops = f"FLOPs per {unit.removesuffix('s')}"
    for column in ("layer", "ranks planned", "ranks at end", "parameters", "compression", f"forward {flops}"):
        table.add_column(column, justify="left" if column.startswith(("layer", "ranks")) else "right")
    for layer in layers:
        table.add_row(
            layer.name.removeprefix("model."),
            _ranks(layer.planned_ranks),
            _ranks(layer.final_ranks) if layer.final_ranks else "removed",
            f"{layer.planned_parameters:,} → {layer.final_parameters:,}",
            _compression(layer.compression) if layer.compression else "",
            f"{layer.planned_flops:,} → {layer.final_flops:,}",
        )
    totals = Table()
    for column in ("whole model", "as planned", "at the end"):
        totals.add_column(column, justify="left" if column == "whole model" else "right")
    totals.add_row("stored parameters", f"{planned.params:,}", f"{final.params:,}")
    totals.add_row("compression", _compression(planned.compression), _compression(final.compression))
    totals.add_row(f"training {flops}", f"{planned.flops_per_token:,.0f}", f"{final.flops_per_token:,.0f}")
    totals.add_row(
        "gradient bytes sent per step and process",
        _bytes(planned.gradient_bytes_per_step),
        _bytes(final.gradient_bytes_per_step),
    )
    speeds = (figures["tokens_per_second_before"], figures["tokens_per_second_after"])
    totals.add_row(f"measured {unit}/s, median", *("not measured" if s is None else f"{s:,.0f}" for s in speeds))
    console = Console(width=WIDE)
    console.print(table)
    console.print(totals)


def show_evaluation(result: dict) -> None:
    """What launch/evaluate.py found, one row a figure."""
    # A title of the table would be broken to its width, and brackets in it read as markup.
    print(f"{result['run']} at step {result['step']} on {result['split']} of {result['corpus']}", flush=True)
    table = Table()
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in list(result.items())[4:]:
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else figure_in_words(value))
    Console(width=WIDTH).print(table)


def _compression(ratio: float) -> str:
    """A ratio for a column: "4.49×", or "1.25× larger"."""
    return f"{ratio:.2f}×" if round(ratio, 2) >= 1 else f"{1 / ratio:.2f}× larger"


def _ranks(ranks: Sequence[int]) -> str:
    return "·".join(map(str, ranks))


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
