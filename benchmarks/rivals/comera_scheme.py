"""CoMERA's layers, written anew from its description (arXiv 2405.14377, see ranked_train.py).

Shapes: N in-features in modes X, Y, Z; M out-features in modes P, Q, O; inner bonds A, B, R, C, D from left to right;
T tokens; x is (…, N), y is (…, M). An embedding's token has digits of four vocabulary modes.
"""

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.rivals.ranked_train import RankedTrain, compressed_size, rank_penalty

__all__ = ["ComeraEmbedding", "ComeraLinear", "compressed_size", "rank_penalty"]

Modes = tuple[int, ...]
EMBEDDING_STD = 0.02


class ComeraLinear(RankedTrain):
    """A linear layer of three in-mode and three out-mode cores (r_{k-1}, mode_k, r_k); `ranks` are all seven.

    Both halves are merged at every forward pass, in the precision of the cores; the product is computed in the dtype
    of x or of autocast.
    """

    def __init__(self, in_modes: Modes, out_modes: Modes, ranks: Modes, bias: bool = False):
        modes = (*in_modes, *out_modes)
        assert len(in_modes) == len(out_modes) == 3, "the scheme has three cores per side"
        shapes = [(left, mode, right) for left, mode, right in zip(ranks[:-1], modes, ranks[1:], strict=True)]
        super().__init__(shapes, std=prod(in_modes) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(prod(out_modes))) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        first, *inner, last = self.masked_cores()
        with torch.autocast(device, enabled=False):
            y_TM = TwoHalves.apply(x.to(dtype).flatten(0, -2), first.squeeze(0), *inner, last.squeeze(-1))
        y = y_TM.unflatten(0, x.shape[:-1])
        return y if self.bias is None else y + self.bias.to(dtype)


class TwoHalves(torch.autograd.Function):
    """x times the product of six cores; keeps x, x·U and the partial products of the cores for backward."""

    @staticmethod
    def forward(ctx, x_TN, a_XA, b_AYB, c_BZR, d_RPC, e_CQD, f_DO):
        ab_XYB = torch.tensordot(a_XA, b_AYB, 1)
        ef_CQO = torch.tensordot(e_CQD, f_DO, 1)
        U_NR = torch.tensordot(ab_XYB, c_BZR, 1).flatten(0, 2)
        V_RM = torch.tensordot(d_RPC, ef_CQO, 1).flatten(1)
        h_TR = x_TN @ U_NR.to(x_TN.dtype)
        ctx.save_for_backward(x_TN, h_TR, U_NR, V_RM, ab_XYB, ef_CQO, a_XA, b_AYB, c_BZR, d_RPC, e_CQD, f_DO)
        return h_TR @ V_RM.to(x_TN.dtype)

    @staticmethod
    def backward(ctx, grad_TM):
        x_TN, h_TR, U_NR, V_RM, ab_XYB, ef_CQO, *cores = ctx.saved_tensors
        a_XA, b_AYB, c_BZR, d_RPC, e_CQD, f_DO = cores
        grad_h_TR = grad_TM @ V_RM.T.to(grad_TM.dtype)
        grad_x_TN = grad_h_TR @ U_NR.T.to(grad_TM.dtype) if ctx.needs_input_grad[0] else None
        in_modes, out_modes = (*ab_XYB.shape[:2], c_BZR.shape[1]), (d_RPC.shape[1], *ef_CQO.shape[1:])
        grad_XYZR = (x_TN.T @ grad_h_TR).to(U_NR.dtype).unflatten(0, in_modes)
        grad_RPQO = (h_TR.T @ grad_TM).to(V_RM.dtype).unflatten(1, out_modes)
        grad_ab_XYB = torch.tensordot(grad_XYZR, c_BZR, ([2, 3], [1, 2]))
        grad_ef_CQO = torch.tensordot(d_RPC, grad_RPQO, ([0, 1], [0, 1]))
        return (
            grad_x_TN,
            torch.tensordot(grad_ab_XYB, b_AYB, ([1, 2], [1, 2])),
            torch.tensordot(a_XA, grad_ab_XYB, ([0], [0])),
            torch.tensordot(ab_XYB, grad_XYZR, ([0, 1], [0, 1])),
            torch.tensordot(grad_RPQO, ef_CQO, ([2, 3], [1, 2])),
            torch.tensordot(grad_ef_CQO, f_DO, ([2], [1])),
            torch.tensordot(e_CQD, grad_ef_CQO, ([0, 1], [0, 1])),
        )


class ComeraEmbedding(RankedTrain):
    """An embedding of four cores (r_{k-1}, v_k, e_k, r_k); `ranks` are all five.

    Every forward pass merges the cores to two half tables and multiplies one row block of each for every token, also
    for tokens that occur more than once: the public code has its `use_unique` off.
    """

    def __init__(self, vocab_modes: Modes, width_modes: Modes, ranks: Modes):
        assert len(vocab_modes) == len(width_modes) == 4, "the scheme has four cores"
        super().__init__(list(zip(ranks[:-1], vocab_modes, width_modes, ranks[1:], strict=True)), EMBEDDING_STD)
        self.right_rows = vocab_modes[2] * vocab_modes[3]

    def forward(self, ids: Tensor) -> Tensor:
        a, b, c, d = self.masked_cores()
        rank = c.shape[0]
        # (1, v, e, r) · (r, w, f, R): rows v·w of e·f·R numbers; on the right likewise, with R first.
        left_LX = torch.tensordot(a, b, 1).squeeze(0).transpose(1, 2).flatten(0, 1).flatten(1)
        right_GX = torch.tensordot(c, d, 1).squeeze(-1).permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1)
        # The gather of the other sides, so that schemes are compared and not gathers.
        left_TER = F.embedding(ids.flatten() // self.right_rows, left_LX).unflatten(1, (-1, rank))
        right_TRE = F.embedding(ids.flatten() % self.right_rows, right_GX).unflatten(1, (rank, -1))
        return (left_TER @ right_TRE).flatten(1).unflatten(0, ids.shape)
