"""Tensor trains that approximate a given weight: TT-SVD (Oseledets 2011, "Tensor-Train Decomposition", algorithm 1).

Shapes: core k is (r_{k-1}, *modes_k, r_k) with r_0 = r_K = 1; M out-features, N in-features, V vocabulary, D
width.
"""

from dataclasses import replace
from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.cores import spread_scale
from comera_dist.formats.tensor_train.train_shapes import Modes, TTMShape, TTShape


def tt_svd(tensor: Tensor, max_ranks: Modes, tolerance: float | None = None) -> tuple[list[Tensor], float]:
    """Cores (r_{k-1}, mode_k, r_k) of a train close to `tensor`, and a bound on the Frobenius norm of the error.

    `max_ranks` is (1, r_1, …, 1). With a `tolerance`, bonds stop at the smallest rank that keeps the relative
    error below it. The bound is sqrt(Σ ε_k²), where ε_k is what the k-th truncation drops (Oseledets 2011,
    theorem 2.2). float64 on the tensor's device.
    """
    remainder, cores, dropped = tensor.double(), [], 0.0
    allowed = None if tolerance is None else tolerance * float(remainder.norm()) / sqrt(max(1, tensor.ndim - 1))
    for mode, max_rank in zip(tensor.shape[:-1], max_ranks[1:-1], strict=True):
        rank_left = cores[-1].shape[-1] if cores else 1
        U, S, Vh = torch.linalg.svd(remainder.reshape(rank_left * mode, -1), full_matrices=False)
        rank = min(max_rank, _smallest_rank(S, allowed))
        dropped += float(S[rank:].square().sum())
        cores.append(U[:, :rank].reshape(rank_left, mode, rank))
        remainder = S[:rank, None] * Vh[:rank]
    cores.append(remainder.reshape(-1, tensor.shape[-1], 1))
    return _balanced(cores), sqrt(dropped)


def tt_from_dense(weight_MN: Tensor, shape: TTShape, tolerance: float | None = None) -> tuple[list[Tensor], TTShape]:
    """Cores of a linear layer close to `weight_MN` (as in nn.Linear) with the modes and at most the ranks of `shape`.

    Returns them with the shape that they have.
    """
    check_size(weight_MN, (shape.out_features, shape.in_features))
    padding = (0, prod(shape.out_modes) - shape.out_features, 0, prod(shape.in_modes) - shape.in_features)
    modes = (*shape.in_modes, *shape.out_modes)
    cores, _ = tt_svd(F.pad(weight_MN.T, padding).reshape(modes), shape.ranks, tolerance)
    return cores, replace(shape, ranks=_ranks_of(cores))


def ttm_from_dense(table_VD: Tensor, shape: TTMShape, tolerance: float | None = None) -> tuple[list[Tensor], TTMShape]:
    """Cores of an embedding close to `table_VD` with the modes and at most the ranks of `shape`; and their shape."""
    check_size(table_VD, (shape.num_embeddings, shape.embedding_dim))
    order = len(shape.vocab_modes)
    padding = (0, prod(shape.width_modes) - table_VD.shape[1], 0, prod(shape.vocab_modes) - table_VD.shape[0])
    tensor = F.pad(table_VD, padding).reshape(*shape.vocab_modes, *shape.width_modes)
    pairs = [axis for k in range(order) for axis in (k, order + k)]
    joint_modes = [v * e for v, e in shape.core_modes]
    cores, _ = tt_svd(tensor.permute(pairs).reshape(joint_modes), shape.ranks, tolerance)
    cores = [core.unflatten(1, modes) for core, modes in zip(cores, shape.core_modes, strict=True)]
    return cores, replace(shape, ranks=_ranks_of(cores))


def check_size(weight: Tensor, size: tuple[int, int]) -> None:
    """ConfigError unless the weight has the size that a shape was planned for."""
    if tuple(weight.shape) != size:
        raise ConfigError(
            f"a weight of size {tuple(weight.shape)} was given, but the shape is for {size}; "
            "plan a shape for this weight"
        )


def _smallest_rank(singular_values: Tensor, allowed: float | None) -> int:
    """The fewest singular values, at least one, whose omitted tail has a norm of at most `allowed` (None: all)."""
    if allowed is None:
        return len(singular_values)
    tails = singular_values.flip(0).square().cumsum(0).sqrt().flip(0)  # tails[k]: norm of values k, k + 1, …
    return max(1, int((tails > allowed).sum()))


def _balanced(cores: list[Tensor]) -> list[Tensor]:
    """TT-SVD leaves the whole norm in the last core; shares it evenly, as random cores have it."""
    norm = float(torch.linalg.matrix_norm(cores[-1].flatten(1), ord=2))
    return spread_scale([*cores[:-1], cores[-1] / norm], norm) if norm > 0 else cores


def _ranks_of(cores: list[Tensor]) -> Modes:
    return (1, *(core.shape[-1] for core in cores))
