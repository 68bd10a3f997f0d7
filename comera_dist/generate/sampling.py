"""How the next token is drawn from a model's logits.

Shapes: V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from comera_dist.errors import ConfigError, TrainingError


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 takes the most probable token. Otherwise, after the temperature, `top_k` keeps so many tokens, and
    `top_p` the fewest of those that are left whose probability is at least so much together.

    ConfigError for values that mean nothing.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature {self.temperature} is not possible; give 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"--top-k {self.top_k} keeps no token; give 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p {self.top_p} is no probability to keep; give a number above 0 and at most 1")

    def draw(self, logits_V: Tensor, generator: torch.Generator) -> int:
        """A token id. What it is follows from the generator, which lies on the CPU, alike on all devices.

        TrainingError where the logits are not finite: the model has diverged.
        """
        if not logits_V.isfinite().all():
            raise TrainingError("the model's logits are not finite, so it writes nothing; name another --step or run")
        if self.temperature == 0:
            return int(logits_V.argmax())
        return int(torch.multinomial(self.probabilities(logits_V), 1, generator=generator))

    def probabilities(self, logits_V: Tensor) -> Tensor:
        """What `draw` draws from where the temperature is above 0: float64 (V), on the CPU."""
        sorted_V, token_V = logits_V.double().cpu().sort(descending=True, stable=True)
        # The largest becomes 0: next to temperature 0 nothing overflows.
        sorted_V = (sorted_V - sorted_V[0]) / self.temperature
        if self.top_k is not None:
            sorted_V[self.top_k :] = -torch.inf
        probability_V = sorted_V.softmax(0)
        if self.top_p is not None:
            # A token stays where those before it do not reach top_p yet.
            before_V = probability_V.cumsum(0) - probability_V
            probability_V = probability_V.where(before_V < self.top_p, 0.0)
        return torch.zeros_like(probability_V).scatter_(0, token_V, probability_V / probability_V.sum())
