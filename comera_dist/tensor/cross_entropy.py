"""Cross-entropy of a linear vocabulary projection without ever holding all logits.

Shapes: T tokens, C tokens of one chunk, V vocabulary, K width of the hidden state (or middle rank of a
tensor-train head).
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 2**22  # logits that live at once: 16 MB in fp32, enough to keep a GPU busy


def linear_cross_entropy(
    hidden_TK: Tensor,
    weight_VK: Tensor,
    targets_T: Tensor,
    chunk_tokens: int | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """Sum over tokens of -log softmax(hidden @ weightᵀ)[target] in nats: a scalar, fp32 (float64 for float64 inputs).

    Loss and gradients are computed together, `chunk_tokens` tokens at a time (default: about four million
    logits), so that memory does not grow with T·V. Matrix products run in autocast's dtype, the softmax and
    the weight's gradient in fp32. Targets equal to `ignore_index` count nothing.
    """
    chunk = chunk_tokens or max(1, CHUNK_LOGITS // weight_VK.shape[0])
    dtype = _compute_dtype(hidden_TK)
    wants_gradients = torch.is_grad_enabled() and (hidden_TK.requires_grad or weight_VK.requires_grad)
    with torch.autocast(hidden_TK.device.type, enabled=False):
        return _LinearCrossEntropy.apply(hidden_TK, weight_VK, targets_T, chunk, ignore_index, dtype, wants_gradients)


class _LinearCrossEntropy(torch.autograd.Function):
    """Keeps the gradients of hidden and weight for backward, which only scales them."""

    @staticmethod
    def forward(ctx, hidden_TK, weight_VK, targets_T, chunk, ignore_index, dtype, wants_gradients):
        narrow_VK, wide = weight_VK.to(dtype), torch.promote_types(dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=hidden_TK.device)
        if wants_gradients:
            grad_hidden_TK = torch.empty_like(hidden_TK)
            grad_weight_VK = torch.zeros_like(weight_VK, dtype=wide, memory_format=torch.contiguous_format)
        for start in range(0, hidden_TK.shape[0], chunk):
            tokens = slice(start, start + chunk)
            hidden_CK, keep_C = hidden_TK[tokens].to(dtype), targets_T[tokens] != ignore_index
            chunk_loss, error_CV = _loss_and_error(hidden_CK @ narrow_VK.T, targets_T[tokens], keep_C, wide)
            loss += chunk_loss
            if wants_gradients:
                error_CV, keep_C1 = error_CV.to(dtype), keep_C[:, None]
                grad_hidden_TK[tokens] = (error_CV @ narrow_VK) * keep_C1
                _add_product(grad_weight_VK, error_CV.T, hidden_CK * keep_C1)
        if wants_gradients:
            ctx.save_for_backward(grad_hidden_TK, grad_weight_VK.to(weight_VK.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_loss):
        grads = [
            g * grad_loss.to(g.dtype) if need else None
            for g, need in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        ]
        return *grads, None, None, None, None, None


def _loss_and_error(logits_CV: Tensor, targets_C: Tensor, keep_C: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """The chunk's summed loss, and softmax - onehot(target), whose rows of ignored tokens mean nothing.

    log Σ exp comes from the largest logit and its probability (at least 1/V, so its logarithm is safe): no
    second pass of exponentials.
    """
    probs_CV = torch.softmax(logits_CV, dim=-1, dtype=wide)
    log_sum_C = logits_CV.amax(-1).to(wide) - probs_CV.amax(-1).log()
    index_C1 = targets_C.where(keep_C, 0)[:, None]
    loss_C = log_sum_C - logits_CV.gather(1, index_C1).squeeze(1)
    probs_CV.scatter_add_(1, index_C1, probs_CV.new_full(index_C1.shape, -1.0))
    return loss_C.where(keep_C, 0).sum(), probs_CV


def _add_product(total_VK: Tensor, left_VC: Tensor, right_CK: Tensor) -> None:
    if left_VC.dtype == total_VK.dtype:
        total_VK.addmm_(left_VC, right_CK)
    else:
        total_VK += left_VC @ right_CK


def _compute_dtype(hidden_TK: Tensor) -> torch.dtype:
    device_type = hidden_TK.device.type
    if torch.is_autocast_enabled(device_type) and hidden_TK.dtype != torch.float64:
        return torch.get_autocast_dtype(device_type)
    return hidden_TK.dtype
