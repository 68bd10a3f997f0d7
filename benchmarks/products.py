"""fp32 products by torch's own kernels, by oneDNN's and in bf16: python benchmarks/products.py [--quick]

The first table has single products of T tokens. The second has forward, backward and the optimizer's step of the
decoders of benchmarks/optimizer_cost.py, 2,048 tokens, where `comera_dist.ops.cpu_products` replaces torch's kernels.
Sides take turns. Torch takes as many threads as OMP_NUM_THREADS says. It measures a CPU, also where there is a GPU.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch

from benchmarks import optimizer_cost
from benchmarks.optimizer_cost import Side, Size
from benchmarks.report import milliseconds, ratios, report, show, spread, times_in_turn
from comera_dist.ops.cpu_products import onednn_kernels

CPU = torch.device("cpu")
# Tokens, in-features and out-features.
SIZES = ((4096, 64, 64), (4096, 128, 352), (2048, 256, 704), (2048, 768, 3072), (1024, 2048, 2048))
QUICK_SIZES = ((128, 128, 128),)
CALLS = 20  # of a product without a change of kernels between them
TORCH, ONEDNN, BF16 = "torch's kernel", "oneDNN", "bf16"


def many(product: Callable[[], object]) -> None:
    """The first product after a change of kernels takes longer than the others."""
    for _ in range(CALLS):
        product()


def by_onednn(call: Callable[[], object]) -> float:
    """Milliseconds of a call while oneDNN's kernels are in place."""
    library = onednn_kernels()
    try:
        return milliseconds(call, CPU)
    finally:
        library._destroy()


def products(tokens: int, inputs: int, outputs: int, repeats: int) -> list[dict]:
    """GFLOP/s of y = x Wᵀ and of both products of its backward pass."""
    x, weight, error = torch.randn(tokens, inputs), torch.randn(outputs, inputs), torch.randn(tokens, outputs)
    pairs = {"y": (x, weight.t()), "gradient of x": (error, weight), "gradient of W": (error.t(), x)}
    return [product_row(f"{tokens:,} × {inputs} → {outputs}", name, *pair, repeats) for name, pair in pairs.items()]


def product_row(layer: str, name: str, left: torch.Tensor, right: torch.Tensor, repeats: int) -> dict:
    narrow = left.bfloat16(), right.bfloat16()
    sides = {
        TORCH: lambda: milliseconds(lambda: many(lambda: torch.mm(left, right)), CPU),
        ONEDNN: lambda: by_onednn(lambda: many(lambda: torch.mm(left, right))),
        BF16: lambda: milliseconds(lambda: many(lambda: torch.mm(*narrow)), CPU),
    }
    times = times_in_turn(sides, 2, repeats)
    flops = 2 * CALLS * left.shape[0] * left.shape[1] * right.shape[1]
    rates = {side: f"{flops / 1e6 / statistics.median(found):.0f}" for side, found in times.items()}
    return {"layer": layer, "product": name, **{f"{side}, GFLOP/s": rate for side, rate in rates.items()}}


def steps(size: Size) -> list[dict]:
    """Times of whole steps, for dense matrices with both optimizers and for small ones with spectral steps."""
    kinds = [("dense", "adamw"), *((format, "spectral") for format in optimizer_cost.FORMATS)]
    return [step_row(Side(format, kind, size, CPU), size) for format, kind in kinds]


def step_row(side: Side, size: Size) -> dict:
    def step() -> None:
        side.passes()
        side.update()

    sides = {TORCH: lambda: milliseconds(step, CPU), ONEDNN: lambda: by_onednn(step)}
    times = times_in_turn(sides, size.warm_up, size.repeats)
    return {
        "format": side.format,
        "optimizer": side.kind,
        **{f"{name}, ms: median (range)": spread(found) for name, found in times.items()},
        "times as fast": spread(ratios(times[TORCH], times[ONEDNN]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, printed only")
    quick = parser.parse_args().quick
    sizes, size = (QUICK_SIZES, optimizer_cost.QUICK) if quick else (SIZES, optimizer_cost.FULL)
    threads = f"threads: {torch.get_num_threads()}"
    single = [row for shape in sizes for row in products(*shape, size.repeats)]
    whole = steps(size)
    if quick:
        show(single, f"GFLOP/s of products, {threads}")
        show(whole, f"fp32 steps, {threads}")
    else:
        report("products_cpu", single, f"GFLOP/s of products, {threads}, median of {size.repeats}")
        report("products_step_cpu", whole, f"fp32 steps, {threads}, {size.repeats} turns")


if __name__ == "__main__":
    main()
