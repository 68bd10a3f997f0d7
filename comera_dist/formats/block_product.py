"""The product of an input with a block tensor train: two batched products that copy no activations.

Shapes: T tokens; n in-blocks of c, m out-blocks of b, r rank as in block_train.py; x is (T, n, c), y is (T, m, b).

Tokens are innermost in the intermediate (n, r, m, T), so the rows (i, k) of one out-block j lie m·T numbers apart: BLAS
reads them as a matrix where they are. So it is with the gradient (m, r, n, T) and the rows (j, k) of one in-block i.
"""

from typing import Any

import torch
from torch import Tensor

from comera_dist.ops.cpu_products import write_products


def multiply_blocks(x_TNC: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """y[t, j, b] = Σ_ikc x[t, i, c] · first[i, c, j, k] · second[j, k, i, b], differentiable; all of one dtype."""
    y: Tensor = _BlockProduct.apply(x_TNC, first, second)  # type: ignore[no-untyped-call]  # torch has no annotation
    return y


class _BlockProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        (n, _, m, r), b = first.shape, second.shape[3]
        narrow = _narrow(x, first)
        ctx.save_for_backward(x, first, second, narrow)
        return _by_tokens(_regrouped(narrow, n * r), second.transpose(1, 2).reshape(m, n * r, b))

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, first, second, narrow = ctx.saved_tensors
        if _is_differentiated_again():
            narrow = _narrow(x, first)  # the saved one does not know that it depends on x and first
        (n, c, m, r), b = first.shape, second.shape[3]
        grad_second = torch.bmm(_regrouped(narrow, n * r), grad_y.transpose(0, 1))  # (m, n·r, b)
        grad_narrow = _regrouped(torch.bmm(second.reshape(m, r * n, b), grad_y.permute(1, 2, 0)), m * r)  # (n, m·r, T)
        # The transpose of (n, c, m·r): with eight rows or fewer in m·r the other order took ten times as long on a CPU.
        grad_first = torch.bmm(grad_narrow, x.transpose(0, 1)).view(n, m, r, c)
        grad_x = (
            _by_tokens(grad_narrow, first.reshape(n, c, m * r).transpose(1, 2)) if ctx.needs_input_grad[0] else None
        )
        return grad_x, grad_first.permute(0, 3, 1, 2), grad_second.view(m, n, r, b).transpose(1, 2)


def _is_differentiated_again() -> bool:
    """Whether a backward pass runs whose own derivative may be asked for (`create_graph=True`)."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _narrow(x_TNC: Tensor, first: Tensor) -> Tensor:
    """The intermediate (n, r·m, T)."""
    n, c, m, r = first.shape
    return torch.bmm(first.permute(0, 3, 2, 1).reshape(n, r * m, c), x_TNC.permute(1, 2, 0))


def _regrouped(narrow: Tensor, rows: int) -> Tensor:
    """(g, k·h, T) as h matrices of g·k = `rows` rows: (h, g·k, T), without a copy."""
    return narrow.view(rows, narrow.shape[0] * narrow.shape[1] // rows, narrow.shape[2]).transpose(0, 1)


def _by_tokens(left_GKT: Tensor, right_GKB: Tensor) -> Tensor:
    """The products leftᵀ right of G matrices as (T, G, B), contiguous; written to their places without a copy."""
    left_GTK, (groups, _, width) = left_GKT.transpose(1, 2), right_GKB.shape
    # A compiler takes no `out` that is not contiguous, and autograd takes none at all.
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return torch.bmm(left_GTK, right_GKB).transpose(0, 1).contiguous()
    out = left_GTK.new_empty(left_GTK.shape[1], groups, width)
    write_products(left_GTK, right_GKB, out.transpose(0, 1))
    return out
