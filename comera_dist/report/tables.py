"""Figures of a model, of a step and of an evaluation as tables for a person."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate
from comera_dist.costs.memory import MemoryEstimate
from comera_dist.costs.step_costs import LayerCost
from comera_dist.design.loss_fit import LossFit, Prediction
from comera_dist.design.proposals import Proposal
from comera_dist.doctor.finding import Finding
from comera_dist.formats.base import Resizable
from comera_dist.formats.plan import Plan
from comera_dist.report.lines import figure_in_words
from comera_dist.report.rank_report import LayerChange

WIDTH = 110  # chosen: characters, fits a wide terminal
WIDE = 160  # chosen: names, modes and ranks of a layer stay on one line


def show_estimate(config: Config, figures: Estimate, num_processes: int) -> None:
    """The size and cost of the model beside those of its dense twin."""
    rows = [
        ("parameters", f"{figures.params:,}", f"{figures.dense_params:,}"),
        ("compression", _compression(figures.compression), "1×"),
        ("  of the matrices", _compression(figures.matrix_compression), "1×"),
        ("bytes", _bytes(figures.size_bytes), _bytes(4 * figures.dense_params)),
        (
            f"training FLOPs per {config.unit.removesuffix('s')}",
            f"{figures.flops_per_token:,.0f}",
            f"{figures.dense_flops_per_token:,.0f}",
        ),
        ("weights, gradients, optimizer per process", _bytes(figures.state_bytes_per_process), ""),
        (
            "gradient bytes sent per step and process",
            _bytes(figures.gradient_bytes_per_step),
            _bytes(figures.dense_gradient_bytes_per_step),
        ),
    ]
    title = f"{config.run.name}: {num_processes} process(es), ZeRO stage {config.train.zero_stage}"
    show_table(["<", "this run", "dense twin"], rows, WIDTH, title)


def show_memory(memory: MemoryEstimate, mode: str) -> None:
    """The bytes of living tensors of a process in a step."""
    rows = [
        (f"activations that a micro batch keeps, train.activation_checkpointing={mode}", _bytes(memory.activations)),
        ("peak of the forward and backward pass", _bytes(memory.backward_peak)),
        ("peak of the update", _bytes(memory.update_peak)),
    ]
    show_table(["<memory of a process", ""], rows, WIDTH)


def show_parts(figures: Estimate) -> None:
    """The stored numbers of each part of the model, one row a part."""
    show_table(["<stored parameters", ""], [(part, f"{numbers:,}") for part, numbers in figures.parts.items()], WIDTH)


def show_layers(plan: Plan) -> None:
    """Modes, ranks and size of each weight matrix, one row a matrix."""
    rows = [
        (
            name,
            f"{layer.inputs} → {layer.outputs}",
            layer.description,
            _ranks((1, *layer.bonds, 1)) if isinstance(layer, Resizable) else "",
            f"{layer.parameters:,}",
            _compression(layer.dense_parameters / layer.parameters),
        )
        for name, layer in plan.items()
    ]
    show_table(["<layer", "in → out", "<modes", "<ranks", "parameters", "compression"], rows, WIDE)


def show_plans(costs: list[LayerCost], tokens: int, unit: str, device: str) -> None:
    """Path, FLOPs and bytes of a forward and backward pass over `tokens` tokens, one row a kind of layer."""
    rows = [
        (cost.name, str(cost.count), cost.path, f"{cost.flops:,}", _bytes(cost.bytes_moved), f"{cost.share:.1%}")
        for cost in costs
    ]
    title = f"forward and backward over {tokens:,} {unit}, planned for {device}"
    show_table(["<layer", "layers", "<path", "FLOPs", "bytes moved", "share of FLOPs"], rows, WIDE, title)


def show_proposals(proposals: list[Proposal], fit: LossFit, vocab_size: int) -> None:
    """Proposed models, one row each, the overrides of the first, and how far the expected losses can be trusted."""
    rows = [
        (
            f"{proposal.config.model.layers} × {proposal.config.model.d_model}",
            *_formats(proposal.config),
            f"{proposal.costs.params:,}",
            f"{proposal.costs.flops_per_token:,.0f}",
            _bytes(proposal.costs.state_bytes_per_process),
            _expected(proposal.expected, vocab_size),
            ", ".join(proposal.expected.outside),
        )
        for proposal in proposals
    ]
    headings = ["<depth × width", "<blocks", "<vocabulary", "parameters", "FLOPs per token", "memory", "expected loss"]
    title = f"Proposed models with {vocab_size:,} pieces, by expected loss"
    show_table([*headings, "<beyond the measured"], rows, WIDE, title)
    print(f"The first: {shlex.join(proposals[0].overrides)}")
    print(
        f"Losses are those of {len(fit.models)} models on {fit.source}; ± is two standard errors. Other data have "
        f"other losses, so compare rows with each other; beyond the measured range the order may differ too."
    )


def _expected(expected: Prediction, vocab_size: int) -> str:
    return f"{expected.loss:.3f} ± {2 * expected.error:.3f}" if expected.is_known(vocab_size) else "not known"


def _formats(config: Config) -> tuple[str, str]:
    """The formats of the blocks' matrices and of the vocabulary, with the options that are set."""

    def in_words(name: str) -> str:
        options = config.tensor.options_of(name)
        return ", ".join((name, *(f"{key} = {getattr(options, key)}" for key in sorted(options.model_fields_set))))

    return in_words(config.model.format.mlp), in_words(config.model.format.embedding)


def show_adaptation(
    layers: list[LayerChange], planned: Estimate, final: Estimate, figures: dict[str, Any], unit: str
) -> None:
    """The effect of rank adaptation, layer by layer and in all. `figures` are the summary's `adaptation`."""
    flops = f"FLOPs per {unit.removesuffix('s')}"
    headings = ["<layer", "<ranks planned", "<ranks at end", "parameters", "compression", f"forward {flops}"]
    show_table(headings, map(_change, layers), WIDE, "Rank adaptation, from plan to end")
    speeds = (figures["tokens_per_second_before"], figures["tokens_per_second_after"])
    rows = [
        ("stored parameters", f"{planned.params:,}", f"{final.params:,}"),
        ("compression", _compression(planned.compression), _compression(final.compression)),
        (f"training {flops}", f"{planned.flops_per_token:,.0f}", f"{final.flops_per_token:,.0f}"),
        (
            "gradient bytes sent per step and process",
            _bytes(planned.gradient_bytes_per_step),
            _bytes(final.gradient_bytes_per_step),
        ),
        (f"measured {unit}/s, median", *("not measured" if speed is None else f"{speed:,.0f}" for speed in speeds)),
    ]
    show_table(["<whole model", "as planned", "at the end"], rows, WIDE)


def _change(layer: LayerChange) -> Sequence[str]:
    return (
        layer.name.removeprefix("model."),
        _ranks(layer.planned_ranks),
        _ranks(layer.final_ranks) if layer.final_ranks else "removed",
        f"{layer.planned_parameters:,} → {layer.final_parameters:,}",
        _compression(layer.compression) if layer.compression else "",
        f"{layer.planned_flops:,} → {layer.final_flops:,}",
    )


def show_compression(result: dict[str, Any]) -> None:
    """The result of launch/compress.py or import_hf.py: the model before and after, then the ranks of its layers."""
    sides = [side for side in ("before", "after") if side in result]
    rows = [
        ("stored parameters", *(f"{result[side]['params']:,}" for side in sides)),
        *(
            (f"validation {name}", *(figure_in_words(result[side][name]) for side in sides))
            for name in ("loss", "accuracy")
            if name in result["before"]
        ),
    ]
    show_table(["<", *sides], rows, WIDTH)
    if "ranks" in result:
        show_table(["<layer", "rank"], [(name, _ranks(ranks)) for name, ranks in result["ranks"].items()], WIDTH)
    print(f"{result['run']} → {result['output']}", flush=True)


def show_findings(findings: list[Finding]) -> None:
    """What the doctor found, one row a check."""
    rows = [(finding.check, finding.found, finding.grade.value, finding.remedy) for finding in findings]
    show_table(["<check", "<found", "<", "<what to do"], rows, WIDE)


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int, title: str | None = None) -> None:
    """Prints a table. Columns are aligned to the right, or to the left if the heading starts with "<"."""
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading.removeprefix("<"), justify="left" if heading.startswith("<") else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=width, markup=False, emoji=False).print(table)  # names may hold brackets and colons


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
