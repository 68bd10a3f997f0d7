"""Linear layers alone, forward and backward, all sides in turn in one run: python benchmarks/layers.py [--quick]

On a CPU in fp32 with some of the sizes, on a GPU in bf16 under autocast with all of them, as CUDA graphs. Side by side:
nn.Linear, two plain factors, TensorLy-Torch if it is installed, CoMERA's scheme, and ours, with equal ranks on all
bonds. On a GPU there is also ours with both products in one Triton kernel, up to its largest rank. A second table gives
the largest measured rank at which ours is faster than dense. --quick prints small cases and writes nothing.

Shapes: N in-features, M out-features, T tokens, R middle rank.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from torch import Tensor, nn

from benchmarks.report import end_at_sigterm, milliseconds, ratios, show_or_report, spread, times_in_turn
from benchmarks.rivals.comera_scheme import ComeraLinear
from benchmarks.rivals.tensorly_layer import is_installed, tensorly_linear
from benchmarks.roofline import Rates, floor_ms, measured_rates
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import clip_ranks, factorize, plan_tt
from comera_dist.runtime import graphs
from comera_dist.runtime.processes import tune_cpu

ORDER = 3  # cores per side
OURS, DENSE, TRITON = "ours", "dense", "ours, Triton"
FACTORED = ("low rank", "CoMERA's scheme", OURS, TRITON)  # sides with an R-wide intermediate per token
DTYPE = {"cpu": torch.float32, "cuda": torch.bfloat16}
GRAPHS = {"cpu": "", "cuda": ", CUDA graphs"}
Size = tuple[int, int]


@dataclass(frozen=True)
class Case:
    in_features: int
    out_features: int
    rank: int
    tokens: int

    @property
    def size(self) -> str:
        return f"{self.in_features} x {self.out_features}"


@dataclass(frozen=True)
class Grid:
    """The measured cases, and the sizes of the copy and of the square product that give the machine's rates."""

    tokens: dict[Size, tuple[int, ...]]
    ranks: tuple[int, ...]
    warm_up: int
    repeats: int
    copy_bytes: int
    matrix_size: int

    def shapes(self) -> Iterator[tuple[int, int, int]]:
        """N, M and each rank up to the one at which two factors need as many FLOPs as the dense layer."""
        for n, m in self.tokens:
            yield from ((n, m, rank) for rank in self.ranks if rank <= equal_flops_rank(n, m))


SQUARES = [(n, n) for n in (512, 1024, 2048, 4096)]
GRIDS = {
    "quick": Grid({(512, 512): (256,), (768, 3072): (256,)}, (16, 64), 1, 3, 1 << 26, 1024),
    "cpu": Grid(
        {
            (512, 512): (1024, 4096, 16384),
            (768, 3072): (1024, 4096),
            (1024, 1024): (1024, 4096),
            (2048, 2048): (1024,),
            (4096, 4096): (1024,),
        },
        (16, 64, 256, 1024),
        warm_up=1,
        repeats=5,
        copy_bytes=1 << 28,
        matrix_size=2048,
    ),
    "cuda": Grid(
        dict.fromkeys([*SQUARES, (768, 3072)], (1024, 16384, 65536)),
        (16, 32, 64, 128, 256, 512, 1024),
        warm_up=3,
        repeats=9,
        copy_bytes=1 << 31,
        matrix_size=8192,
    ),
}


@dataclass(frozen=True)
class Result:
    """One side of one case: its milliseconds, and dense milliseconds over its own, turn by turn."""

    case: Case
    side: str
    parameters: int
    times: list[float]
    speedups: list[float]
    floor: float | None


class TritonLinear(nn.Module):
    """`layer` as the product of x with its merged sides, gates included, in the fused bottleneck kernel."""

    def __init__(self, layer: TTLinear):
        super().__init__()
        self.layer = layer
        self.register_buffer("gate_R", torch.ones(layer.plan.middle_rank))

    def forward(self, x: Tensor) -> Tensor:
        # Imported here and below, because torch brings Triton only on GPUs.
        from benchmarks.kernels.bottleneck_kernel import fused_bottleneck_product

        U_NR, V_RM = self.layer.factors()
        return fused_bottleneck_product(x, U_NR, self.gate_R, V_RM)


class Side:
    """A layer with its input and the gradient of its output, ready to time."""

    def __init__(self, layer: nn.Module, x_TN: Tensor, grad_TM: Tensor):
        self.layer, self.grad_TM = layer, grad_TM
        self.x_TN = x_TN.clone().requires_grad_()
        self.wanted = [self.x_TN, *layer.parameters()]

    def step(self) -> tuple[Tensor, ...]:
        """Gradients of the input and of all parameters."""
        device = self.x_TN.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.x_TN.dtype is torch.bfloat16):
            y_TM = self.layer(self.x_TN)
        return torch.autograd.grad(y_TM, self.wanted, self.grad_TM)

    def milliseconds(self) -> float:
        return milliseconds(self._timed, self.x_TN.device)

    @cached_property
    def _timed(self) -> Callable[[], object]:
        """On a GPU the replay of a CUDA graph, as in training: a small layer alone takes as long as its launches."""
        device = self.x_TN.device
        if device.type != "cuda":
            return self.step
        try:
            return graphs.captured(self.step, device, [], None)
        except RuntimeError as error:  # a side that waits for the GPU
            print(f"{type(self.layer).__name__} is timed with its launches: {str(error).splitlines()[0]}", flush=True)
            return self.step


def equal_flops_rank(n: int, m: int) -> int:
    """The rank R of R·(N+M) = N·M, rounded down."""
    return n * m // (n + m)


def largest_triton_rank() -> int:
    from benchmarks.kernels.bottleneck_kernel import MAX_RANK

    return MAX_RANK


def low_rank(n: int, m: int, rank: int) -> nn.Module:
    return nn.Sequential(nn.Linear(n, rank, bias=False), nn.Linear(rank, m, bias=False))


def layers_of(n: int, m: int, rank: int, device: torch.device) -> dict[str, nn.Module]:
    in_modes, out_modes = factorize(n, ORDER), tuple(reversed(factorize(m, ORDER)))
    ranks = clip_ranks((*in_modes, *out_modes), [rank] * (2 * ORDER - 1))
    layers: dict[str, nn.Module] = {DENSE: nn.Linear(n, m, bias=False), "low rank": low_rank(n, m, rank)}
    if is_installed():
        layers["tensorly-torch"] = tensorly_linear(n, m, ORDER, rank)
    ours = TTLinear(plan_tt(n, m, ORDER, rank))
    layers |= {"CoMERA's scheme": ComeraLinear(in_modes, out_modes, ranks), OURS: ours}
    if device.type == "cuda" and rank <= largest_triton_rank():
        layers[TRITON] = TritonLinear(ours)
    return {name: layer.to(device) for name, layer in layers.items()}


def floor_of(case: Case, side: str, parameters: int, dtype: torch.dtype, rates: Rates) -> float | None:
    """The roofline floor in milliseconds; None for a side whose products are others."""
    if side not in (DENSE, *FACTORED):
        return None
    rank = case.rank if side in FACTORED else None
    return floor_ms(case.in_features, case.out_features, case.tokens, rank, parameters, dtype, rates)


def compare(case: Case, layers: dict[str, nn.Module], rates: Rates, grid: Grid) -> list[Result]:
    device = next(layers[DENSE].parameters()).device
    dtype = DTYPE[device.type]
    x_TN, grad_TM = (
        torch.randn(case.tokens, width, device=device, dtype=dtype) for width in (case.in_features, case.out_features)
    )
    sides = {name: Side(layer, x_TN, grad_TM) for name, layer in layers.items()}
    times = times_in_turn({name: side.milliseconds for name, side in sides.items()}, grid.warm_up, grid.repeats)
    parameters = {name: sum(p.numel() for p in layer.parameters()) for name, layer in layers.items()}
    return [
        Result(
            case,
            name,
            parameters[name],
            own,
            ratios(times[DENSE], own),
            floor_of(case, name, parameters[name], dtype, rates),
        )
        for name, own in times.items()
    ]


def row(result: Result) -> dict:
    floor = result.floor
    return {
        "size": result.case.size,
        "tokens": result.case.tokens,
        "rank": result.case.rank,
        "side": result.side,
        "parameters": result.parameters,
        "ms: median (range)": spread(result.times, 3),
        "times as fast as dense": "1" if result.side == DENSE else spread(result.speedups, 2),
        "achieved over floor": "–" if floor is None else f"{statistics.median(result.times) / floor:.2f}",
    }


def crossover(results: list[Result]) -> list[dict]:
    """For each size and number of tokens, the largest measured rank at which ours is faster than dense."""
    ours: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        if result.side == OURS:
            ours.setdefault((result.case.size, result.case.tokens), []).append(result)
    return [
        {
            "size": size,
            "tokens": tokens,
            "largest measured rank faster than dense": max(
                (r.case.rank for r in group if statistics.median(r.speedups) > 1), default="none"
            ),
            "measured ranks": ", ".join(str(r.case.rank) for r in group),
            "rank of equal FLOPs": equal_flops_rank(group[0].case.in_features, group[0].case.out_features),
        }
        for (size, tokens), group in ours.items()
    ]


def measure(grid: Grid, rates: Rates, device: torch.device) -> Iterator[Result]:
    for n, m, rank in grid.shapes():
        layers = layers_of(n, m, rank, device)
        for tokens in grid.tokens[n, m]:
            yield from compare(Case(n, m, rank, tokens), layers, rates, grid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small cases, printed only")
    arguments = parser.parse_args()
    tune_cpu()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    grid = GRIDS["quick" if arguments.quick else device.type]
    rates = measured_rates(grid.copy_bytes, grid.matrix_size, device, DTYPE[device.type])
    conditions = (
        f"forward and backward, {DTYPE[device.type]}{GRAPHS[device.type]}, median of {grid.repeats}, sides in turn; "
        f"measured rates: {rates}"
    )
    results: list[Result] = []
    end_at_sigterm()
    try:
        results.extend(measure(grid, rates, device))
    finally:
        if results:
            publish(results, conditions, device.type, arguments.quick)


def publish(results: list[Result], conditions: str, device_type: str, quick: bool) -> None:
    tables = {
        "layers": ([row(result) for result in results], f"linear layers: {conditions}"),
        "layers_crossover": (crossover(results), f"up to which rank ours is faster than dense: {conditions}"),
    }
    for name, (rows, title) in tables.items():
        show_or_report(f"{name}_{device_type}", rows, title, quick)


if __name__ == "__main__":
    main()
