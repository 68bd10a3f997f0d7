"""Trains a module of your own as a run of comera_dist: its data, schedule, checkpoints and launchers.

    python examples/own_module.py --config configs/quickstart.yaml run.name=recurrent optim.kind=adamw
    torchrun --standalone --nproc_per_node 2 examples/own_module.py --config configs/quickstart.yaml run.name=recurrent

The configuration names a corpus of text. The keys of its sections `model` and `tensor` have no effect.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import comera_dist


class Recurrent(nn.Module):
    """Predicts each token from a recurrent state of those before it."""

    def __init__(self, vocabulary: int, width: int = 64):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(vocabulary, width), nn.GRU(width, width, batch_first=True)
        self.up, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, vocabulary)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The summed loss of a batch; targets of -100 count nothing."""
        logits = self.output(torch.relu(self.up(self.gru(self.embedding(tokens))[0])))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")

    def measure(self, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        """Summed figures of a batch of validation, by name."""
        return {"loss": self(tokens, targets)}


def build(vocabulary: int) -> nn.Module:
    torch.manual_seed(0)  # all processes begin with the same weights
    rules = {"up": comera_dist.LinearFormat("tensor", order=2, rank=16)}
    return comera_dist.tensorize(Recurrent(vocabulary), rules)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a recurrent network on a corpus of text.")
    parser.add_argument("--config", required=True)
    parser.add_argument("--local_rank", help="given by the deepspeed launcher")
    args, overrides = parser.parse_known_args()
    config = comera_dist.read_config(args.config, overrides)
    vocabulary = json.loads((Path(str(config.data.corpus)) / "manifest.json").read_text())["vocab_size"]
    status = comera_dist.train(config, model=build(vocabulary))
    if status == 0:
        trained = comera_dist.load(config.run_directory, model=build(vocabulary))
        print(f"{type(trained.model).__name__} of step {trained.checkpoint.manifest['step']} is loaded again.")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
