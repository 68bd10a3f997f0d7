"""A model that can learn from another one, its teacher."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from comera_dist.ops.block_logits import Weights
from comera_dist.ops.distillation import Lesson


class Learner(nn.Module):
    """Base of models that predict tokens or classes. Shapes: T predictions, V tokens or classes, K hidden width."""

    def __init__(self) -> None:
        super().__init__()
        self._teaching: tuple[Learner, float] | None = None  # a tuple, so that the teacher is no part of this module

    def learn_from(self, teacher: "Learner", share: float) -> None:
        """From now on `share` of the loss, in training mode, is the cross-entropy with predictions of `teacher`."""
        self._teaching = teacher, share

    @torch.no_grad()
    def lesson(self, *inputs: Tensor | None) -> Lesson | None:
        """The teacher's predictions for a batch without its targets; None without a teacher, and in a validation."""
        if self._teaching is None or not self.training:
            return None
        teacher, share = self._teaching
        return Lesson(*teacher.predictions(*inputs), share)

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number V of tokens or classes, as `predictions` gives them."""

    @abstractmethod
    def predictions(self, *inputs: Any) -> tuple[Tensor, Weights]:
        """x (T, K) and W (V, K), or its diagonal blocks, whose `block_logits` are the logits of a batch."""
