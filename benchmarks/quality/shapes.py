"""Losses of decoders of many shapes, for launch/design.py: python benchmarks/quality/shapes.py

Every shape trains once on the base of the ladders, at a learning rate that the trials of docs/recipe.md found. Two
runs of one thread run at a time. Finished runs are not repeated, and killed ones resume. When all have ended, their
losses become comera_dist/design/measured.json, on which launch/design.py fits its expectations.
"""

import argparse
import math
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.quality.runs import BASE, VOCABULARY, train
from benchmarks.quality.sides import SPECTRAL, blocks, sized, vocabulary
from comera_dist.config.reader import read_config
from comera_dist.costs.of_run import plan_run
from comera_dist.design import loss_fit
from comera_dist.design.loss_fit import Features, LossFit
from comera_dist.design.proposals import features

SOURCE = f"English books in {VOCABULARY:,} pieces, batches of 4,096 tokens, spectral steps, one seed and learning rate"


class Shape(NamedTuple):
    """A decoder and its training: the ranks of block trains and of the vocabulary, and the matrices that blocks share.

    Without a number its matrices are dense, and so is its vocabulary.
    """

    steps: int
    width: int
    layers: int = 4
    rank: int | None = None
    vocabulary: int | None = None
    matrices: int | None = None

    @property
    def name(self) -> str:
        # YAML takes digits and underscores alone for a number, which no run may have for a name.
        return "_".join(("shape", *(str(value or "dense") for value in self)))

    @property
    def overrides(self) -> list[str]:
        """Of the ladders' base."""
        of_blocks = ["dense"]
        if self.rank is not None:
            of_blocks = ["block_train", f"tensor.block_train.rank={self.rank}"]
        elif self.matrices is not None:
            of_blocks = ["shared", f"tensor.shared.matrices={self.matrices}"]
        formats = blocks(*of_blocks)
        if self.vocabulary is not None:
            formats = blocks(*of_blocks, *vocabulary(self.vocabulary), vocabulary="low_rank")
        sizes = (*sized(self.width), f"model.layers={self.layers}", f"train.steps={self.steps}")
        return [*formats, *sizes, *SPECTRAL.overrides, f"{SPECTRAL.key}={SPECTRAL.middle:g}"]

    @property
    def features(self) -> Features:
        config = read_config(BASE, self.overrides)
        return features(config, plan_run(config, VOCABULARY), config.total_tokens)


SHAPES = (
    *(Shape(500, width) for width in (32, 48, 64, 96, 128)),
    *(Shape(500, 64, layers) for layers in (2, 8)),
    Shape(500, 96, 2),
    Shape(250, 64),
    *(Shape(1000, width) for width in (32, 48, 64)),
    *(Shape(500, width, rank=1) for width in (64, 96, 128, 256)),
    *(Shape(500, 64, rank=rank) for rank in (2, 3)),
    *(Shape(500, 128, layers, rank=1) for layers in (2, 8)),
    *(Shape(500, 128, rank=1, vocabulary=rank) for rank in (24, 40, 64)),
    Shape(500, 64, rank=2, vocabulary=24),
    Shape(500, 96, 2, rank=2, vocabulary=36),
    Shape(250, 128, rank=1, vocabulary=40),
    Shape(1000, 128, rank=1, vocabulary=40),
    Shape(1000, 96, rank=1),
    *(Shape(500, width, matrices=1) for width in (64, 96, 128)),
    Shape(500, 64, matrices=2),
    *(Shape(500, 64, 8, matrices=count) for count in (1, 2)),
    Shape(500, 128, 2, matrices=1),
    Shape(500, 128, vocabulary=24, matrices=1),
    Shape(250, 96, matrices=1),
    # For the test of a fit of all above: proposals for 150,000 numbers, and other models of two blocks.
    *(Shape(1000, 88, layers, vocabulary=44, matrices=1) for layers in (2, 4)),
    Shape(1000, 72, 2, matrices=1),
    *(Shape(1000, width, 2) for width in (56, 72, 88)),
)


def fit_of(folder: Path, workers: int) -> LossFit:
    """The fit of all shapes, which are trained unless they are. Shapes that diverged are left out."""
    with ThreadPoolExecutor(workers) as pool:
        losses = list(pool.map(lambda shape: train(folder, shape.name, shape.overrides), SHAPES))
    finite = [(shape.features, loss) for shape, loss in zip(SHAPES, losses, strict=True) if math.isfinite(loss)]
    return LossFit(SOURCE, tuple(model for model, _ in finite), tuple(round(loss, 4) for _, loss in finite))


def left_out_errors(fit: LossFit) -> list[float]:
    """For each model the expectation of a fit without it, less its loss, in nats."""
    measured = zip(fit.models, fit.losses, strict=True)
    return [fit.without(index).predict(model).loss - loss for index, (model, loss) in enumerate(measured)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs/shapes"), help="folder of the runs")
    parser.add_argument("--output", type=Path, default=Path(loss_fit.__file__).with_name("measured.json"))
    arguments = parser.parse_args()
    fit = fit_of(arguments.runs, arguments.workers)
    arguments.output.write_text(fit.write())
    errors = left_out_errors(fit)
    print(f"{len(fit.models)} models; their losses scatter by {fit.scatter:.4f} nats around the regression")
    print(
        f"A fit without a model misses its loss by {math.sqrt(statistics.mean(e * e for e in errors)):.4f} nats (root "
        f"mean square), at most {max(map(abs, errors)):.4f}"
    )


if __name__ == "__main__":
    main()
