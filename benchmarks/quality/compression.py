"""Losses of a trained dense run after compression: python benchmarks/quality/compression.py --run runs/NAME

The run is of a dense decoder, e.g. one of ladder.py. Each row stores the matrices of the blocks as two factors with a
share of their numbers. The error is that of the weight, that of the layer's output, or the estimate of the loss that
launch/compress.py takes. Ranks have one share in all layers, or are chosen for all layers at once as it does.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.report import report
from comera_dist.compress.candidate import Candidate
from comera_dist.compress.compressed import calibration, dense_layers, planned
from comera_dist.compress.moments import Moments, measured_moments
from comera_dist.compress.ranks import choose_ranks
from comera_dist.data.tasks import open_task
from comera_dist.run.evaluate import evaluate
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.processes import alone

SHARES = (0.8, 0.6, 0.4)
TOKENS, VALIDATION_TOKENS = 32_768, 192_000
Candidates = Mapping[str, Candidate]


def one_share(candidates: Candidates, numbers: int) -> dict[str, int | None]:
    """The rank of each layer that has the same share of its numbers in all layers."""
    share = numbers / sum(candidate.dense_numbers for candidate in candidates.values())
    return {
        name: max(1, int(share * candidate.dense_numbers / candidate.numbers(1)))
        for name, candidate in candidates.items()
    }


WEIGHTS: dict[str, Callable[[Moments], Moments]] = {
    "weight": lambda found: Moments(torch.eye(len(found.inputs_NN)), torch.eye(len(found.gradients_MM))),
    "output": lambda found: Moments(found.inputs_NN, torch.eye(len(found.gradients_MM))),
    "loss": lambda found: found,
}
SIDES = [
    *((name, "one share", one_share, "low_rank") for name in WEIGHTS),
    *(("loss", "chosen", choose_ranks, format) for format in ("low_rank", "block_train")),
]


def compressed(trained: Trained, candidates: Candidates, ranks: Mapping[str, int | None]) -> Trained:
    """A copy of the model with these ranks."""
    model: nn.Module = copy.deepcopy(trained.model)
    for name, rank in ranks.items():
        if rank is not None:
            _, layer = candidates[name].built(rank)
            model.set_submodule(name, layer)
    return Trained(trained.config, trained.plan, trained.checkpoint, model)


def loss(trained: Trained) -> float:
    found = evaluate(trained, alone(), None, "valid", VALIDATION_TOKENS)
    return float(found["loss"])


def rows(trained: Trained) -> list[dict]:
    layers = dense_layers(trained.model, trained.plan)
    batches = calibration(trained, open_task(trained.config), TOKENS)
    moments = measured_moments(trained.model, layers, batches, torch.device("cpu"))
    found = [{"error of": "", "ranks": "", "format": "dense", "share": 1.0, "validation loss": round(loss(trained), 3)}]
    for weight, choice, choose, format in SIDES:
        candidates = {
            name: Candidate(layer, planned(trained.config, format, trained.plan[name]), WEIGHTS[weight](moments[name]))
            for name, layer in layers.items()
        }
        dense = sum(candidate.dense_numbers for candidate in candidates.values())
        for share in SHARES:
            after = loss(compressed(trained, candidates, choose(candidates, int(share * dense))))
            row = {"error of": weight, "ranks": choice, "format": format, "share": share}
            found.append(row | {"validation loss": round(after, 3)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of a dense run")
    torch.set_num_threads(1)
    trained = load_trained(parser.parse_args().run)
    report("compression", rows(trained), "Validation loss after compression, without training")


if __name__ == "__main__":
    main()
