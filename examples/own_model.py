"""Tensorizes a model of your own and trains it in a loop of your own, with ranks that adapt.

    python examples/own_model.py

The task is made up: the class of a sequence is the sum of its tokens modulo 4. It takes seconds on two CPU cores.
"""

import torch
from torch import nn

import comera_dist

STEPS = 300


class Classifier(nn.Module):
    """Sums the embeddings of a sequence and applies two dense layers."""

    def __init__(self, vocabulary: int = 64, width: int = 128, classes: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(torch.relu(self.hidden(self.embedding(tokens).sum(1))))


def main() -> None:
    torch.manual_seed(0)
    model = Classifier()
    dense = sum(parameter.numel() for parameter in model.parameters())

    # Four lines adapt ranks: layers, optimizer and scheduler here, and the scheduler's step in the loop.
    comera_dist.tensorize(model, {"hidden": comera_dist.LinearFormat("tensor", order=3, rank=32, outer_rank=8)})
    optimizer = comera_dist.adamw(model, lr=3e-3)
    ranks = comera_dist.RankScheduler(model, optimizer, STEPS, sync_every=20, target_compression=20)
    for step in range(1, STEPS + 1):
        tokens = torch.randint(64, (256, 2))
        loss = nn.functional.cross_entropy(model(tokens), tokens.sum(1) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record = ranks.step(loss)
        if record is not None and step % 60 == 0:
            print(f"step {step:3} | loss {loss.item():.3f} | {record['stage']} | ranks {record['ranks']['hidden']}")

    stored = sum(parameter.numel() for parameter in model.parameters())
    print(f"{stored:,} parameters instead of {dense:,}. {ranks.verdict()}")
    comera_dist.densify(model)  # the same function with dense layers, for other tools


if __name__ == "__main__":
    main()
