"""Tensor trains that approximate a given weight: TT-SVD (Oseledets 2011, "Tensor-Train Decomposition", algorithm 1).

Shapes: core k is (r_{k-1}, *modes_k, r_k) with r_0 = r_K = 1; M out-features, N in-features, V vocabulary, D
width.
"""

from dataclasses import replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.cores import spread_scale
from comera_dist.formats.tensor_train.train_shapes import Modes, TTMShape, TTShape


def tt_svd(tensor: Tensor, max_ranks: Modes) -> list[Tensor]:
    """float64 cores (r_{k-1}, mode_k, r_k) of a train close to `tensor`, on its device.

    `max_ranks` is (1, r_1, …, 1). The Frobenius norm of the error is at most sqrt(Σ ε_k²), where ε_k is the error of
    the best matrix of rank r_k for the k-th unfolding (Oseledets 2011, theorem 2.2).
    """
    remainder = tensor.double()
    cores: list[Tensor] = []
    for mode, max_rank in zip(tensor.shape[:-1], max_ranks[1:-1], strict=True):
        rank_left = cores[-1].shape[-1] if cores else 1
        U, S, Vh = torch.linalg.svd(remainder.reshape(rank_left * mode, -1), full_matrices=False)
        cores.append(U[:, :max_rank].reshape(rank_left, mode, -1))
        remainder = S[:max_rank, None] * Vh[:max_rank]
    cores.append(remainder.reshape(-1, tensor.shape[-1], 1))
    return _balanced(cores)


def tt_from_dense(weight_MN: Tensor, shape: TTShape) -> tuple[list[Tensor], TTShape]:
    """Cores of a linear layer close to `weight_MN` with the modes and at most the ranks of `shape`; and their shape.

    ConfigError for a weight of another size.
    """
    padding = (0, prod(shape.out_modes) - shape.outputs, 0, prod(shape.in_modes) - shape.inputs)
    tensor = F.pad(shape.table_of(weight_MN), padding).reshape(*shape.in_modes, *shape.out_modes)
    cores = tt_svd(tensor, shape.ranks)
    return cores, replace(shape, ranks=_ranks_of(cores))


def ttm_from_dense(table_VD: Tensor, shape: TTMShape) -> tuple[list[Tensor], TTMShape]:
    """Cores of an embedding close to `table_VD` with the modes and at most the ranks of `shape`; and their shape.

    ConfigError for a table of another size.
    """
    order = len(shape.vocab_modes)
    padding = (0, prod(shape.width_modes) - shape.outputs, 0, prod(shape.vocab_modes) - shape.inputs)
    tensor = F.pad(shape.table_of(table_VD), padding).reshape(*shape.vocab_modes, *shape.width_modes)
    pairs = [axis for k in range(order) for axis in (k, order + k)]
    cores = tt_svd(tensor.permute(pairs).reshape(shape.core_sizes), shape.ranks)
    found = replace(shape, ranks=_ranks_of(cores))
    return [core.reshape(size) for core, size in zip(cores, found.core_shapes, strict=True)], found


def _balanced(cores: list[Tensor]) -> list[Tensor]:
    """TT-SVD leaves the whole norm in the last core; shares it evenly, as random cores have it."""
    norm = float(torch.linalg.matrix_norm(cores[-1].flatten(1), ord=2))
    return spread_scale([*cores[:-1], cores[-1] / norm], norm) if norm > 0 else cores


def _ranks_of(cores: list[Tensor]) -> Modes:
    return (1, *(core.shape[-1] for core in cores))
