"""Embedding lookups alone, forward and backward, all sides in turn in one run: python benchmarks/embedding.py [--quick]

Side by side in fp32: nn.Embedding, the plain lookup in a tensor-train matrix, CoMERA's scheme, and ours. The last three
have the same cores: those of CoMERA's six-encoder, and of a recommendation model's table of ten million rows. Tokens
follow Zipf's law. Extra memory is the peak of a step minus the memory before it, so it includes gradients; on a CPU it
is resident memory of a separate process (Linux), on a GPU that of the allocator. --quick prints one small case and
writes nothing.

Shapes: T tokens, V rows of a table, D width.
"""

import argparse
import os
import sys
from itertools import product
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from torch import Tensor, nn

from benchmarks.commands import result_of
from benchmarks.report import end_at_sigterm, milliseconds, ratios, report, show, spread, times_in_turn
from benchmarks.rivals.comera_scheme import ComeraEmbedding
from benchmarks.rivals.plain_ttm import PlainTTMEmbedding
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.shapes import TTMShape, plan_ttm
from comera_dist.runtime.memory import peak_memory_bytes, return_freed_memory
from comera_dist.runtime.processes import tune_cpu

WARM_UP, REPEATS = 1, 5
PLAIN = "plain TTM"
SIDES = {
    "nn.Embedding": lambda shape: nn.Embedding(shape.inputs, shape.outputs),
    PLAIN: lambda shape: PlainTTMEmbedding(shape.in_modes, shape.out_modes, shape.ranks),
    "CoMERA's scheme": lambda shape: ComeraEmbedding(shape.in_modes, shape.out_modes, shape.ranks),
    "ours": TTMEmbedding,
}
TABLES = {
    "six-encoder": plan_ttm(30_522, 768, 4, 32, (16, 20, 10, 10), (4, 4, 8, 6)),
    "LLaMA's vocabulary": plan_ttm(32_000, 768, 4, 32, (16, 20, 10, 10), (4, 4, 8, 6)),
    "ten million rows": plan_ttm(10_000_000, 16, 4, 32),
}
CASES = [
    *product(("six-encoder", "LLaMA's vocabulary"), (10_000, 20_000, 40_000)),
    ("ten million rows", 20_000),
]
QUICK_INDICES = 2_000


class Side:
    """An embedding with ids (T,) and the gradient (T, D) of the rows that it returns, ready to time."""

    def __init__(self, module: nn.Module, ids_T: Tensor, width: int):
        self.module, self.ids_T = module.to(ids_T.device), ids_T
        self.grad_TD = torch.randn(len(ids_T), width, device=ids_T.device)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())

    def step(self) -> tuple[Tensor, ...]:
        """Gradients of all parameters."""
        return torch.autograd.grad(self.module(self.ids_T), list(self.module.parameters()), self.grad_TD)

    def milliseconds(self) -> float:
        return milliseconds(self.step, self.ids_T.device)

    def extra_bytes(self) -> int:
        self.step()  # libraries allocate buffers at their first call, which do not belong to a step
        _restart_peak()
        before = peak_memory_bytes()
        self.step()
        return peak_memory_bytes() - before


def zipf_tokens(vocabulary: int, count: int) -> Tensor:
    """Ids (count,) with probabilities proportional to 1 / (id + 1), so small ids are frequent."""
    weights_V = 1 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    return weights_V.multinomial(count, replacement=True, generator=torch.Generator().manual_seed(1))


def side_of(shape: TTMShape, side: str, indices: int, device: torch.device) -> Side:
    return Side(SIDES[side](shape), zipf_tokens(shape.inputs, indices).to(device), shape.outputs)


def compare(table: str, indices: int, device: torch.device) -> list[dict]:
    sides = {name: side_of(TABLES[table], name, indices, device) for name in SIDES}
    times = times_in_turn({name: side.milliseconds for name, side in sides.items()}, WARM_UP, REPEATS)
    distinct = len(sides[PLAIN].ids_T.unique())
    return [
        {
            "table": table,
            "indices (distinct)": f"{indices} ({distinct})",
            "side": name,
            "parameters": side.parameters,
            "ms: median (range)": spread(times[name]),
            "times as fast as plain TTM": "1" if name == PLAIN else spread(ratios(times[PLAIN], times[name]), 2),
            "extra memory MiB": f"{extra_bytes(table, indices, name, side) / 2**20:.1f}",
        }
        for name, side in sides.items()
    ]


def extra_bytes(table: str, indices: int, name: str, side: Side) -> int:
    """Extra memory of a step of `side`: on a GPU measured here, on a CPU in a separate process."""
    if side.ids_T.device.type == "cuda":
        return side.extra_bytes()
    return int(result_of([sys.executable, __file__, "--memory-of", table, str(indices), name]))


def _restart_peak() -> None:
    """Resets the measured peak to the memory in use now."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small case, printed only")
    parser.add_argument("--memory-of", nargs=3, metavar=("TABLE", "INDICES", "SIDE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.memory_of:
        table, indices, side = arguments.memory_of
        print(side_of(TABLES[table], side, int(indices), device).extra_bytes())
        return
    tune_cpu()
    title = f"embedding lookups, forward and backward, fp32, median of {REPEATS}, sides in turn"
    if arguments.quick:
        show(compare("six-encoder", QUICK_INDICES, device), title)
        return
    rows: list[dict] = []
    end_at_sigterm()
    try:
        for table, indices in CASES:
            rows += compare(table, indices, device)
    finally:
        if rows:
            report(f"embedding_{device.type}", rows, title)


if __name__ == "__main__":
    main()
