"""Cross-entropy of a linear vocabulary projection without ever holding all logits.

Shapes: T tokens, C tokens of one chunk, V vocabulary, K width of the hidden state (or middle rank of a
tensor-train head).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from comera_dist.ops.autocast import compute_dtype, without_autocast
from comera_dist.ops.block_logits import Weights, as_blocks, block_logits, count_rows
from comera_dist.ops.liger import has_liger
from comera_dist.ops.targets import IGNORED_TARGET

if TYPE_CHECKING:
    from comera_dist.ops.distillation import Lesson

# (hidden, blocks of the weight, targets, chunk, wants_gradients) → loss, gradient of hidden, gradients of the blocks
Implementation = Callable[
    [Tensor, Sequence[Tensor], Tensor, int, bool], tuple[Tensor, Tensor | None, Sequence[Tensor] | None]
]

# Chosen: logits that live at once. 16 MB in fp32 stay near a CPU's caches. On a GPU that would be 131 tokens of LLaMA's
# vocabulary: short kernels, and a gradient of the weight that is added up 63 times in 8,192 tokens.
CHUNK_LOGITS, GPU_CHUNK_LOGITS = 2**22, 2**25
_may_wait = True


def linear_cross_entropy(
    hidden_TK: Tensor,
    weight: Weights,
    targets_T: Tensor,
    chunk_tokens: int | None = None,
    implementation: Implementation | None = None,
) -> Tensor:
    """Sum over tokens of -log softmax(hidden @ Wᵀ)[target] in nats: a scalar, fp32 (float64 for float64 inputs).

    `weight` is W (V, K), or the diagonal blocks of a block-diagonal W (see `block_logits`). Loss and gradients are
    computed together, `chunk_tokens` tokens at a time (default: `tokens_at_once`), so memory does not grow with T·V.
    Matrix products run in autocast's dtype, the softmax and the sum of the weight's gradient in fp32. An IGNORED_TARGET
    adds nothing. Without `implementation`, `select_implementation` chooses: on a GPU Liger's fused kernel if
    liger_kernel is installed.
    """
    blocks = as_blocks(weight)
    chunk = chunk_tokens or tokens_at_once(hidden_TK.device, count_rows(blocks))
    dtype = compute_dtype(hidden_TK)
    wants_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (hidden_TK, *blocks))
    with without_autocast(hidden_TK):
        loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
            targets_T, chunk, dtype, wants_gradients, implementation, hidden_TK, *blocks
        )
    return loss


def tokens_at_once(device: torch.device, rows: int) -> int:
    """Tokens whose logits, one for each of `rows` rows of the vocabulary, live at once."""
    return max(1, (GPU_CHUNK_LOGITS if device.type == "cuda" else CHUNK_LOGITS) // rows)


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients of hidden and weight in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        targets_T: Tensor,
        chunk: int,
        dtype: torch.dtype,
        wants_gradients: bool,
        implementation: Implementation | None,
        hidden_TK: Tensor,
        *blocks: Tensor,
    ) -> Tensor:
        loss_and_gradients = implementation or select_implementation(
            hidden_TK.device, dtype, len(hidden_TK), len(blocks)
        )
        loss, grad_hidden, grad_blocks = loss_and_gradients(
            hidden_TK.to(dtype), [block.to(dtype) for block in blocks], targets_T, chunk, wants_gradients
        )
        if grad_hidden is not None and grad_blocks is not None:
            inputs = (hidden_TK, *blocks)
            ctx.save_for_backward(*(g.to(x.dtype) for g, x in zip((grad_hidden, *grad_blocks), inputs, strict=True)))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[5:]  # the five inputs before `hidden_TK` have no gradient
        # Not in bf16: 1 / tokens, which the loss is scaled by, would be rounded for all gradients alike.
        grads = [
            (g.to(grad_loss.dtype) * grad_loss).to(g.dtype) if need else None
            for g, need in zip(ctx.saved_tensors, wanted, strict=False)
        ]
        return None, None, None, None, None, *grads


@contextmanager
def without_waiting() -> Iterator[None]:
    """Within this block no cross-entropy waits for the GPU: a step that is captured as a CUDA graph must not."""
    global _may_wait
    before, _may_wait = _may_wait, False
    try:
        yield
    finally:
        _may_wait = before


def select_implementation(device: torch.device, dtype: torch.dtype, tokens: int, blocks: int = 1) -> Implementation:
    """Liger's kernel if it is installed and supports the inputs, else `chunked_loss_and_gradients`.

    Liger waits for the GPU, so it is never chosen within `without_waiting`. It takes weights of a single block.
    """
    if tokens > 0 and blocks == 1 and _may_wait and has_liger(device, dtype):
        from comera_dist.ops.liger_cross_entropy import liger_loss_and_gradients

        return liger_loss_and_gradients
    return chunked_loss_and_gradients


def chunked_loss_and_gradients(
    hidden_TK: Tensor,
    blocks: Sequence[Tensor],
    targets_T: Tensor,
    chunk: int,
    wants_gradients: bool,
    lesson: "Lesson | None" = None,
) -> tuple[Tensor, Tensor | None, Sequence[Tensor] | None]:
    """The summed loss and, if wanted, its gradients of `hidden` in its dtype and of the blocks in fp32 (or float64).

    `hidden` and the blocks have the same dtype, in which the products run. A `lesson` takes its share of the loss.
    """
    wide = torch.promote_types(hidden_TK.dtype, torch.float32)
    loss = torch.zeros((), dtype=wide, device=hidden_TK.device)
    grad_hidden_TK = torch.empty_like(hidden_TK) if wants_gradients else None
    grad_blocks = [torch.zeros_like(block, dtype=wide) for block in blocks] if wants_gradients else None
    for start in range(0, hidden_TK.shape[0], chunk):
        tokens = slice(start, start + chunk)
        hidden_CK, keep_C = hidden_TK[tokens], targets_T[tokens] != IGNORED_TARGET
        logits_CV, index_C1 = block_logits(hidden_CK, blocks), targets_T[tokens].where(keep_C, 0)[:, None]
        loss_C, error_CV = _loss_and_error(logits_CV, index_C1, wide)
        if lesson is not None:
            loss_C = loss_C + lesson.teach(tokens, logits_CV, index_C1, error_CV)
        chunk_loss = loss_C.where(keep_C, 0).sum()
        loss = loss + chunk_loss  # not in place: torch 2.11 compiles such a result without its backward pass
        if grad_hidden_TK is not None and grad_blocks is not None:
            error_CV, keep_C1 = error_CV.to(hidden_TK.dtype), keep_C[:, None]
            errors = torch.split(error_CV, [len(block) for block in blocks], -1)
            products = [error @ block for error, block in zip(errors, blocks, strict=True)]
            grad_hidden_TK[tokens] = torch.cat(products, -1) * keep_C1
            hiddens = torch.split(hidden_CK * keep_C1, [block.shape[1] for block in blocks], -1)
            for total, error, hidden in zip(grad_blocks, errors, hiddens, strict=True):
                _add_product(total, error.T, hidden)
    return loss, grad_hidden_TK, grad_blocks


def _loss_and_error(logits_CV: Tensor, index_C1: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """The losses (C,) of targets with these indices, and softmax - onehot(target) (C, V).

    log Σ exp = largest logit - log of its probability. This saves a second pass of exponentials; the probability is at
    least 1/V, so its logarithm is safe.
    """
    probs_CV = torch.softmax(logits_CV, dim=-1, dtype=wide)
    log_sum_C = logits_CV.amax(-1).to(wide) - probs_CV.amax(-1).log()
    loss_C = log_sum_C - logits_CV.gather(1, index_C1).squeeze(1)
    probs_CV.scatter_add_(1, index_C1, probs_CV.new_full(index_C1.shape, -1.0))
    return loss_C, probs_CV


def _add_product(total_VK: Tensor, left_VC: Tensor, right_CK: Tensor) -> None:
    if left_VC.dtype == total_VK.dtype:
        total_VK.addmm_(left_VC, right_CK)
    else:
        total_VK += left_VC @ right_CK
