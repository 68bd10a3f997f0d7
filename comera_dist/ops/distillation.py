"""Cross-entropy of a vocabulary projection with the predictions of another model, its teacher, besides the targets.

Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network" (arXiv 1503.02531), at temperature 1.

Shapes: T tokens, C tokens of one chunk, V vocabulary, J width of the teacher's hidden state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from comera_dist.ops.block_logits import Weights, as_blocks, block_logits
from comera_dist.ops.cross_entropy import Implementation, chunked_loss_and_gradients


@dataclass(frozen=True)
class Lesson:
    """A teacher's predictions p = softmax(hidden @ Wᵀ): `hidden` (T, J), and `weight` W (V, J) or its diagonal blocks.

    Of the loss of each token, `share` is the cross-entropy -Σ p log q with them, where q is the student's prediction;
    the rest is that with the target. Both are in nats.
    """

    hidden_TJ: Tensor
    weight: Weights
    share: float

    def teach(self, tokens: slice, logits_CV: Tensor, index_C1: Tensor, error_CV: Tensor) -> Tensor:
        """What these tokens' losses (C,) with the targets gain by the lesson. Changes the gradient of the logits.

        `index_C1` are the targets, and `error_CV` is softmax - onehot(target) before. It becomes softmax -
        (1 - share) · onehot(target) - share · p.
        """
        logits_of_teacher_CV = block_logits(self.hidden_TJ[tokens], self.weight)
        probs_CV = torch.softmax(logits_of_teacher_CV, dim=-1, dtype=error_CV.dtype)
        error_CV.sub_(probs_CV, alpha=self.share)
        error_CV.scatter_add_(1, index_C1, error_CV.new_full(index_C1.shape, self.share))
        expected_C = (probs_CV * logits_CV).sum(1)
        return self.share * (logits_CV.gather(1, index_C1).squeeze(1) - expected_C)


def taught_by(lesson: Lesson | None) -> Implementation | None:
    """The `implementation` of `linear_cross_entropy` with this lesson; None without one."""
    return None if lesson is None else partial(_taught_loss_and_gradients, lesson)


def _taught_loss_and_gradients(
    lesson: Lesson, hidden_TK: Tensor, blocks: Sequence[Tensor], targets_T: Tensor, chunk: int, wants_gradients: bool
) -> tuple[Tensor, Tensor | None, Sequence[Tensor] | None]:
    """`chunked_loss_and_gradients` with a lesson, whose products have the dtype of the others."""
    dtype = hidden_TK.dtype
    weight = [block.to(dtype) for block in as_blocks(lesson.weight)]  # once for all chunks
    in_dtype = Lesson(lesson.hidden_TJ.to(dtype), weight, lesson.share)
    return chunked_loss_and_gradients(hidden_TK, blocks, targets_T, chunk, wants_gradients, in_dtype)
