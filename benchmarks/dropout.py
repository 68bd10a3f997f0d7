"""Passes of an encoder with dropout: python benchmarks/dropout.py [--quick]

Forward and backward passes of CoMERA's six-encoder in fp32 on a CPU, in turn: with our dropout, with torch's, and with
none. Torch takes as many threads as OMP_NUM_THREADS says.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.report import milliseconds, ratios, show_or_report, spread, times_in_turn
from comera_dist.config.reader import read_config
from comera_dist.models.encoder import trunk
from comera_dist.models.encoder.plan import EncoderFacts
from comera_dist.models.family import build_model, plan_model
from comera_dist.ops.dropout import Dropout
from comera_dist.runtime.processes import tune_cpu

SEQUENCES, SEQ_LEN, VOCABULARY, CLASSES = 4, 128, 30_522, 3
QUICK = (
    "model.layers=1",
    "model.d_model=32",
    "model.d_ff=64",
    "model.heads=2",
    "tensor.layers=[]",
    "tensor.embeddings=[]",
)
MODELS = {"dense": ("model.format=dense",), "tensor trains": ()}
FIXED = "ranks.adapt=false"
WARM_UP, REPEATS = 1, 9


@contextmanager
def torch_dropout() -> Iterator[None]:
    def attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, p: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=p)

    with patch.object(trunk, "attention", attention), patch.object(Dropout, "forward", nn.Dropout.forward):
        yield


def row(name: str, overrides: tuple[str, ...]) -> dict[str, str | float]:
    def passes(p: float, context: Callable) -> Callable[[], float]:
        facts = (f"model.vocab_size={VOCABULARY}", f"model.classes={CLASSES}", f"model.dropout={p}")
        config = read_config(Path("configs/mnli_six_encoder.yaml"), [*overrides, *facts, FIXED])
        plan = plan_model(config, EncoderFacts(VOCABULARY, CLASSES))
        model = build_model(config.model, plan, torch.Generator().manual_seed(1)).train()
        tokens = torch.randint(5, VOCABULARY, (SEQUENCES, SEQ_LEN), generator=torch.Generator().manual_seed(2))

        def one() -> None:
            with context():
                model(tokens, tokens % 2, tokens[:, 0] % CLASSES).backward()

        return lambda: milliseconds(one, torch.device("cpu"))

    sides = {"ours": passes(0.1, nullcontext), "torch's": passes(0.1, torch_dropout), "none": passes(0.0, nullcontext)}
    times = times_in_turn(sides, WARM_UP, REPEATS)
    return {
        "six-encoder": name,
        **{f"{side}, ms": round(statistics.median(found), 1) for side, found in times.items()},
        "torch's over ours": spread(ratios(times["torch's"], times["ours"]), 2),
        "ours over none": spread(ratios(times["ours"], times["none"]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny encoder, printed only")
    quick = parser.parse_args().quick
    tune_cpu()
    rows = [row(name, (*overrides, *(QUICK if quick else ()))) for name, overrides in MODELS.items()]
    threads = torch.get_num_threads()
    title = f"passes of an encoder with dropout, {SEQUENCES} x {SEQ_LEN}, fp32, {threads} threads, {REPEATS} turns"
    show_or_report("dropout_cpu", rows, title, quick)


if __name__ == "__main__":
    main()
