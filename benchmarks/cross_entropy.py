"""The loss of a vocabulary and its gradients: python benchmarks/cross_entropy.py [--quick]

Sides, in turn: our chunks (`comera_dist.ops.cross_entropy`), torch's `F.linear_cross_entropy` in chunks, and the
product of all logits. In fp32 on a CPU, with the products that training takes there. Torch takes as many threads as
OMP_NUM_THREADS says.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.report import milliseconds, ratios, show_or_report, spread, times_in_turn
from comera_dist.ops.cross_entropy import linear_cross_entropy
from comera_dist.runtime.processes import tune_cpu

# Tokens, width and rows of the vocabulary: the ladders' decoder at d=128, the quickstart's, and LLaMA's vocabulary.
SIZES = ((4096, 128, 1024), (2048, 256, 4096), (2048, 512, 32_000))
QUICK_SIZES = ((64, 16, 40),)
WARM_UP, REPEATS = 1, 7
OURS, TORCH, WHOLE = "ours", "F.linear_cross_entropy in chunks", "all logits"

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of hidden states, weight and targets


def losses() -> dict[str, Loss]:
    def in_chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        options = nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)

    def whole(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum")

    return {OURS: linear_cross_entropy, TORCH: in_chunks, WHOLE: whole}


def row(tokens: int, width: int, vocabulary: int) -> dict:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(tokens, width, generator=generator, requires_grad=True)
    weight = (torch.randn(vocabulary, width, generator=generator) * 0.02).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=generator)

    def timed(loss: Loss) -> Callable[[], float]:
        return lambda: milliseconds(lambda: loss(hidden, weight, targets).backward(), torch.device("cpu"))

    times = times_in_turn({name: timed(loss) for name, loss in losses().items()}, WARM_UP, REPEATS)
    return {
        "tokens × width → vocabulary": f"{tokens:,} × {width} → {vocabulary:,}",
        **{f"{name}, ms": round(statistics.median(found), 1) for name, found in times.items()},
        "torch's chunks over ours": spread(ratios(times[TORCH], times[OURS]), 2),
        "all logits over ours": spread(ratios(times[WHOLE], times[OURS]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny size, printed only")
    quick = parser.parse_args().quick
    tune_cpu()
    rows = [row(*size) for size in (QUICK_SIZES if quick else SIZES)]
    title = f"loss of a vocabulary and its gradients, fp32, {torch.get_num_threads()} threads, {REPEATS} turns"
    show_or_report("cross_entropy_cpu", rows, title, quick)


if __name__ == "__main__":
    main()
