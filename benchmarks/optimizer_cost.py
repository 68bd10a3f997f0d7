"""The optimizer's share of a training step: python benchmarks/optimizer_cost.py [--quick]

A step is forward, backward and the optimizer, on one device without DeepSpeed, in fp32 on a CPU and in bf16 on a GPU.
Forward and backward are measured on a micro batch of 2,048 tokens, in turn with the optimizer's step. A step of 65,536
tokens counts them 32 times. Linear layers in blocks have the format; vocabulary and norms are dense, and AdamW steps
them on all sides. Torch takes as many threads as OMP_NUM_THREADS says.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch

from benchmarks.report import milliseconds, show_or_report, spread, times_in_turn
from comera_dist.config.reader import read_config
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.optim.build import build_optimizer
from comera_dist.runtime.forward import AutocastModel
from comera_dist.runtime.processes import tune_cpu

BASE = "benchmarks/tensor_train.yaml"  # d=256, ff=704, 4 layers, trains of rank 64 and outer rank 16
COMMON = ("tensor.layers=[]", "model.tie_embeddings=true", "train.zero_stage=0")
FORMATS = {
    "dense": (),
    "tensor": (),
    "low_rank": (),
    "block_train": ("tensor.block_train.rank=2",),
}
OPTIMIZERS = ("adamw", "muon", "spectral")
PRECISION = {"cpu": "fp32", "cuda": "bf16"}
MICRO_BATCH, LARGE_BATCH = 2048, 65_536  # tokens


class Size(NamedTuple):
    """A model on top of BASE, and how often its sides take turns."""

    overrides: tuple[str, ...]
    vocabulary: int
    warm_up: int
    repeats: int


FULL = Size((), 4096, warm_up=2, repeats=7)
QUICK = Size(("model.d_model=16", "model.d_ff=24", "model.layers=1", "model.heads=2"), 64, warm_up=1, repeats=2)


class Side:
    """A decoder whose blocks have `format`, with its optimizer."""

    def __init__(self, format: str, kind: str, size: Size, device: torch.device):
        self.format, self.kind, self._device = format, kind, device
        blocks = f"model.format={{attention: {format}, mlp: {format}, embedding: dense, head: dense}}"
        precision = PRECISION[device.type]
        chosen = [*COMMON, *FORMATS[format], *size.overrides, blocks, f"optim.kind={kind}"]
        config = read_config(BASE, [*chosen, f"train.precision={precision}"])
        model = Decoder(config.model, plan_decoder(config, size.vocabulary), torch.Generator().manual_seed(1))
        self._module = AutocastModel(model.to(device), precision)
        self._optimizer = build_optimizer(model, config.optim)
        shape = (MICRO_BATCH // config.data.seq_len, config.data.seq_len)
        self._tokens_BS = torch.randint(size.vocabulary, shape, generator=torch.Generator().manual_seed(2)).to(device)

    def passes(self) -> float:
        """Milliseconds of forward and backward."""
        self._optimizer.zero_grad()
        return milliseconds(self._backward, self._device)

    def update(self) -> float:
        """Milliseconds of the optimizer's step."""
        return milliseconds(self._optimizer.step, self._device)

    def _backward(self) -> None:
        loss = self._module(self._tokens_BS, self._tokens_BS.roll(-1, dims=1))
        (loss / self._tokens_BS.numel()).backward()


def sides_of(size: Size, device: torch.device) -> list[Side]:
    """All formats with all optimizers; Muon steps dense matrices only."""
    pairs = [(format, kind) for format in FORMATS for kind in OPTIMIZERS if kind != "muon" or format == "dense"]
    return [Side(format, kind, size, device) for format, kind in pairs]


def row(side: Side, passes: list[float], updates: list[float]) -> dict:
    return {
        "format": side.format,
        "optimizer": side.kind,
        "forward and backward ms: median (range)": spread(passes),
        "optimizer ms: median (range)": spread(updates),
        f"optimizer % of {MICRO_BATCH:,} tokens": share(passes, updates, 1),
        f"optimizer % of {LARGE_BATCH:,} tokens (passes x {LARGE_BATCH // MICRO_BATCH})": share(
            passes, updates, LARGE_BATCH // MICRO_BATCH
        ),
    }


def share(passes: list[float], updates: list[float], micro_batches: int) -> str:
    """The optimizer's percentage of a step of `micro_batches`; the median of all turns."""
    shares = [100 * own / (micro_batches * other + own) for other, own in zip(passes, updates, strict=True)]
    return f"{statistics.median(shares):.2f}"


def measure(size: Size, device: torch.device) -> list[dict]:
    sides = sides_of(size, device)
    calls = {}
    for number, side in enumerate(sides):
        calls |= {f"{number} passes": side.passes, f"{number} update": side.update}
    times = times_in_turn(calls, size.warm_up, size.repeats)
    return [row(side, times[f"{number} passes"], times[f"{number} update"]) for number, side in enumerate(sides)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, printed only")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tune_cpu()
    size = QUICK if arguments.quick else FULL
    rows = measure(size, device)
    conditions = f"{PRECISION[device.type]}, {torch.get_num_threads()} threads, {size.repeats} turns of all sides"
    title = f"optimizer's share of a step, {conditions}"
    show_or_report(f"optimizer_cost_{device.type}", rows, title, arguments.quick)


if __name__ == "__main__":
    main()
