"""Tensor trains that approximate a given weight: TT-SVD (Oseledets 2011, "Tensor-Train Decomposition", algorithm 1).

Shapes: core k is (r_{k-1}, *modes_k, r_k) with r_0 = r_K = 1.
"""

from dataclasses import replace
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.cores import spread_scale
from comera_dist.formats.tensor_train.train_shapes import Modes, TrainShape

S = TypeVar("S", bound=TrainShape)


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


def train_from_dense(weight: Tensor, shape: S) -> tuple[list[Tensor], S]:
    """Cores of a train close to `weight` with the modes and at most the ranks of `shape`; and the shape that they have.

    `weight` is (M, N), or a table (V, D). ConfigError for another size.
    """
    in_modes, out_modes = shape.in_modes, shape.out_modes
    padding = (0, prod(out_modes) - shape.outputs, 0, prod(in_modes) - shape.inputs)
    tensor = F.pad(shape.table_of(weight), padding).reshape(*in_modes, *out_modes)
    if shape.is_embedding:  # each core has one mode of either side
        order = len(in_modes)
        tensor = tensor.permute([axis for k in range(order) for axis in (k, order + k)])
    cores = tt_svd(tensor.reshape(shape.core_sizes), shape.ranks)
    found = replace(shape, ranks=(1, *(core.shape[-1] for core in cores)))
    return [core.reshape(size) for core, size in zip(cores, found.core_shapes, strict=True)], found


def _balanced(cores: list[Tensor]) -> list[Tensor]:
    """TT-SVD leaves the whole norm in the last core; shares it evenly, as random cores have it."""
    norm = float(torch.linalg.matrix_norm(cores[-1].flatten(1), ord=2))
    return spread_scale([*cores[:-1], cores[-1] / norm], norm) if norm > 0 else cores
