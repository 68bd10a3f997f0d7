"""The expected loss of a decoder, from a regression on measured models.

The loss is a constant and a term for each quantity, which falls as a power of it, as in the law of Hoffmann et al.
(2022, arXiv 2203.15556); each format adds a constant. Exponents are given, so the regression is linear and has an exact
prediction error. Shapes: n measured models, k coefficients.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Chosen among 1/4, 1/2 and 1, by the error of fits without one model (docs/quality.md). Hoffmann et al. have 0.34 for
# parameters and 0.28 for tokens, of much longer trainings.
EXPONENTS = {"matrices": 0.25, "width": 1.0, "layers": 0.5, "vocabulary": 1.0, "tokens": 1.0}


class Features(NamedTuple):
    """A model and its training."""

    matrices: int  # stored numbers of the matrices of all blocks
    width: int
    layers: int
    vocabulary: int  # stored numbers of tables and head
    tokens: int  # of training
    format: str  # of the matrices


class Prediction(NamedTuple):
    """Expected loss in nats a token and its standard error, the scatter of single models included."""

    loss: float
    error: float
    outside: tuple[str, ...]  # quantities beyond the measured range

    def is_known(self, vocab_size: int) -> bool:
        """False if guessing has no larger loss: so few tokens are too far from the measured ones."""
        return self.loss < math.log(vocab_size)


@dataclass(frozen=True)
class LossFit:
    """Measured models and their losses. `source` says on which data, with which optimizer."""

    source: str
    models: tuple[Features, ...]
    losses: tuple[float, ...]

    @classmethod
    def read(cls, text: str) -> "LossFit":
        """From JSON, as `write` gives it."""
        record = json.loads(text)
        rows = [Features(**row["model"]) for row in record["models"]]
        return cls(record["source"], tuple(rows), tuple(row["loss"] for row in record["models"]))

    def write(self) -> str:
        rows = [{"model": m._asdict(), "loss": loss} for m, loss in zip(self.models, self.losses, strict=True)]
        return json.dumps({"source": self.source, "models": rows}, indent=1) + "\n"

    def without(self, index: int) -> "LossFit":
        """The fit of all models but one."""
        models = self.models[:index] + self.models[index + 1 :]
        return LossFit(self.source, models, self.losses[:index] + self.losses[index + 1 :])

    def predict(self, model: Features) -> Prediction:
        """The regression's value, with the standard error of a new model: s · √(1 + xᵀ (XᵀX)⁻¹ x)."""
        x_k = self._row(model)
        spread = float(x_k @ self._inverse_kk @ x_k)
        return Prediction(float(x_k @ self._solution_k), self.scatter * math.sqrt(1 + spread), self._outside(model))

    @property
    def scatter(self) -> float:
        """Standard deviation of the measured losses around the regression."""
        residual_n = np.array(self.losses) - self._design_nk @ self._solution_k
        free = len(self.models) - self._design_nk.shape[1]
        assert free > 0, "a regression needs more models than coefficients"
        return math.sqrt(float(residual_n @ residual_n) / free)

    @cached_property
    def _formats(self) -> tuple[str, ...]:
        """The formats of the measured models but one, whose constant is that of all models."""
        return tuple(sorted({model.format for model in self.models})[1:])

    @cached_property
    def _varied(self) -> tuple[str, ...]:
        """Quantities that differ between the measured models. The others have no coefficient."""
        return tuple(name for name in EXPONENTS if len({getattr(model, name) for model in self.models}) > 1)

    def _row(self, model: Features) -> NDArray[np.float64]:
        first = self.models[0]  # terms relative to those of any one model are numbers near 1
        terms = [(getattr(model, name) / getattr(first, name)) ** -EXPONENTS[name] for name in self._varied]
        return np.array([1.0, *(float(model.format == name) for name in self._formats), *terms])

    @cached_property
    def _design_nk(self) -> NDArray[np.float64]:
        return np.stack([self._row(model) for model in self.models])

    @cached_property
    def _inverse_kk(self) -> NDArray[np.float64]:
        return np.asarray(np.linalg.pinv(self._design_nk.T @ self._design_nk), dtype=np.float64)

    @cached_property
    def _solution_k(self) -> NDArray[np.float64]:
        solution: NDArray[np.float64] = np.linalg.lstsq(self._design_nk, np.array(self.losses), rcond=None)[0]
        return solution

    def _outside(self, model: Features) -> tuple[str, ...]:
        unknown = () if model.format in {m.format for m in self.models} else ("format",)
        return unknown + tuple(
            name for name in EXPONENTS if not _within([getattr(m, name) for m in self.models], model, name)
        )


def measured_fit() -> LossFit:
    """The fit of the ladders in `benchmarks/quality`, whose models are part of the package."""
    return LossFit.read(files("comera_dist.design").joinpath("measured.json").read_text())


def _within(measured: Sequence[int], model: Features, name: str) -> bool:
    quantity: int = getattr(model, name)
    return min(measured) <= quantity <= max(measured)
