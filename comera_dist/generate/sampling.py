"""How the next token is drawn from a model's logits.

Shapes: V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from comera_dist.errors import ConfigError, TrainingError


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 is greedy decoding. Otherwise logits are divided by the temperature, then cut to the `top_k` most
    probable tokens, then to the smallest set whose total probability reaches `top_p`.

    Raises ConfigError for impossible values.
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
            raise ConfigError(
                f"--top-p {self.top_p} is not a possible probability; give a number above 0 and at most 1"
            )

    def draw(self, logits_V: Tensor, generator: torch.Generator) -> int:
        """A token id. It depends on the generator, which must be on the CPU, and not on the device of the logits.

        Raises TrainingError if the logits are not finite: the model has diverged.
        """
        if not logits_V.isfinite().all():
            raise TrainingError("the model's logits are not finite, so it writes nothing; name another --step or run")
        if self.temperature == 0:
            return int(logits_V.argmax())
        return int(torch.multinomial(self.probabilities(logits_V), 1, generator=generator))

    def probabilities(self, logits_V: Tensor) -> Tensor:
        """The probabilities (V) from which `draw` draws at a positive temperature: float64, on the CPU."""
        sorted_V, token_V = logits_V.double().cpu().sort(descending=True, stable=True)
        # The largest becomes 0, so that a temperature near 0 does not overflow.
        sorted_V = (sorted_V - sorted_V[0]) / self.temperature
        if self.top_k is not None:
            sorted_V[self.top_k :] = -torch.inf
        probability_V = sorted_V.softmax(0)
        if self.top_p is not None:
            # A token stays if the more probable ones do not reach top_p.
            before_V = probability_V.cumsum(0) - probability_V
            probability_V = probability_V.where(before_V < self.top_p, 0.0)
        return torch.zeros_like(probability_V).scatter_(0, token_V, probability_V / probability_V.sum())
