"""Layers in block trains alone, forward and backward, all sides in turn: python benchmarks/blocks.py [--bf16] [--quick]

Each layer multiplies by its blocks, by its merged weight, and as the planner chooses, beside nn.Linear. Its blocks are
nearly square, or eight large ones of about an eighth, a quarter and a half of the dense numbers. In fp32 on a CPU, or
with --bf16 in bf16, with the products that training takes there, and in bf16 on a GPU, as CUDA graphs; bf16 is that of
autocast. The floor of a side is the longer of its bytes over the measured bandwidth and its FLOPs over the measured
rate of a large product.

Shapes: N in-features, M out-features, T tokens; n in-blocks of c, m out-blocks of b, rank r.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from torch import Tensor, nn

from benchmarks.layers import DENSE, DTYPE, GRAPHS, Side
from benchmarks.report import end_at_sigterm, ratios, show_or_report, spread, times_in_turn
from benchmarks.roofline import Rates, linear_bytes, linear_flops, measured_rates
from comera_dist.formats.block_path import Path as BlockPath
from comera_dist.formats.block_path import cheapest_path
from comera_dist.formats.block_train import BlockTrainPlan, plan_blocks
from comera_dist.runtime.processes import tune_cpu

PLANNED = "as planned"
SIZES = ((512, 512), (768, 3072), (2048, 2048), (4096, 4096))
RANKS = (1, 2, 4, 8, 16)  # of nearly square blocks
FEW, SHARES = 8, (1 / 8, 1 / 4, 1 / 2)  # large blocks, and their shares of the dense numbers
TOKENS = {"cpu": 2048, "cuda": 16384}
QUICK = (((64, 64),), (2,), (1 / 4,), {"cpu": 32, "cuda": 32})
WARM_UP, REPEATS = 1, 5
RATES = {"cpu": (1 << 28, 2048), "cuda": (1 << 31, 8192)}  # bytes of the copy, side of the product


class ByPath(nn.Module):
    """The layer by one path, or by the planner's."""

    def __init__(self, layer: nn.Module, path: BlockPath | None):
        super().__init__()
        self.layer, self.path = layer, path

    def forward(self, x_TN: Tensor) -> Tensor:
        y_TM: Tensor = self.layer(x_TN) if self.path is None else self.layer.multiply(x_TN, self.path)
        return y_TM


def floor(plan: BlockTrainPlan, path: BlockPath, tokens: int, itemsize: int, rates: Rates) -> float:
    """Milliseconds. Bytes are those of `roofline.linear_bytes`, whose intermediate has n·m·r numbers a token here."""
    (n, c), (m, b), r = plan.in_blocks, plan.out_blocks, plan.rank
    flops = linear_flops(plan.inputs, plan.outputs, tokens, None)
    if path == "blocks":
        flops = 6 * tokens * n * m * r * (b + c)
    narrow = n * m * r if path == "blocks" else None
    moved = linear_bytes(plan.inputs, plan.outputs, tokens, narrow, plan.parameters, itemsize)
    return max(moved / rates.bytes_per_ms, flops / rates.flops_per_ms)


def rows_of(
    plan: BlockTrainPlan, tokens: int, device: torch.device, dtype: torch.dtype, rates: Rates
) -> list[dict[str, str | int]]:
    generator = torch.Generator().manual_seed(1)
    layer = plan.build(0.02, generator).to(device)
    x_TN, grad_TM = (torch.randn(tokens, width, generator=generator) for width in (plan.inputs, plan.outputs))
    modules: dict[str, nn.Module] = {
        DENSE: nn.Linear(plan.inputs, plan.outputs, bias=False, device=device),
        "blocks": ByPath(layer, "blocks"),
        "merged weight": ByPath(layer, "weight"),
        PLANNED: ByPath(layer, None),
    }
    sides = {name: Side(module, x_TN.to(device, dtype), grad_TM.to(device, dtype)) for name, module in modules.items()}
    calls: dict[str, Callable[[], float]] = {name: side.milliseconds for name, side in sides.items()}
    times = times_in_turn(calls, WARM_UP, REPEATS)
    planned = cheapest_path(plan, tokens, device.type, dtype.itemsize)
    paths: dict[str, BlockPath] = {DENSE: "weight", "blocks": "blocks", "merged weight": "weight", PLANNED: planned}
    floors = {name: floor(plan, path, tokens, dtype.itemsize, rates) for name, path in paths.items()}
    return [
        {
            "size": f"{plan.inputs} x {plan.outputs}",
            "blocks": plan.in_blocks[0],
            "r": plan.rank,
            "r · blocks": plan.rank * plan.in_blocks[0],
            "share of dense numbers": "1" if name == DENSE else f"{plan.parameters / plan.dense_parameters:.2f}",
            "side": f"{name}: {planned}" if name == PLANNED else name,
            "ms: median (range)": spread(own, 1),
            "times as fast as dense": "1" if name == DENSE else spread(ratios(times[DENSE], own), 2),
            "floor over time": f"{floors[name] / statistics.median(own):.2f}",
        }
        for name, own in times.items()
    ]


def with_few_blocks(inputs: int, outputs: int, share: float) -> BlockTrainPlan:
    """At most this share of the dense numbers."""
    return plan_blocks(inputs, outputs, int(share * inputs * outputs / (FEW * (inputs + outputs))), FEW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny layer, printed only")
    parser.add_argument("--bf16", action="store_true", help="in bf16 on a CPU too")
    arguments = parser.parse_args()
    quick, bf16 = arguments.quick, arguments.bf16
    tune_cpu()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if bf16 else DTYPE[device.type]
    sizes, ranks, shares, tokens = QUICK if quick else (SIZES, RANKS, SHARES, TOKENS)
    copy_bytes, side = (1 << 20, 64) if quick else RATES[device.type]
    rates = measured_rates(copy_bytes, side, device, dtype)
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    title = (
        f"block trains, forward and backward, {tokens[device.type]:,} tokens, {dtype}{GRAPHS[device.type]}"
        f"{threads}, median of {REPEATS}, sides in turn; measured rates: {rates}"
    )
    rows: list[dict[str, str | int]] = []
    end_at_sigterm()
    try:
        plans = [plan_blocks(*size, rank) for size, rank in product(sizes, ranks)]
        plans += [with_few_blocks(*size, share) for size, share in product(sizes, shares)]
        for plan in plans:
            rows += rows_of(plan, tokens[device.type], device, dtype, rates)
    finally:
        if rows:
            show_or_report(f"blocks_{device.type}" + ("_bf16" if bf16 else ""), rows, title, quick)


if __name__ == "__main__":
    main()
