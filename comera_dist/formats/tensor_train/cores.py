"""Random cores that keep the variance of the signal through a train, as a good dense initialisation does.

Shapes: core k is (r_{k-1}, *modes_k, r_k) with r_0 = r_K = 1; R the rank of the bond between the two halves
of a train, P and Q everything to its left and right; A, V, E, B as in contraction.py.
"""

from math import prod, sqrt

import torch
from torch import Tensor

from comera_dist.formats.tensor_train.contraction import merge_sides
from comera_dist.formats.tensor_train.train_shapes import Modes, TrainShape, TTMShape, TTShape

TABLE_STD = 0.02  # GPT-2's initialisation of its embeddings


def random_cores(shape: TrainShape, std: float | None, generator: torch.Generator | None = None) -> list[Tensor]:
    """float64 CPU cores of a weight with mean square std²; without `std`, 1/√N for a layer and TABLE_STD for a table.

    `generator` is a CPU generator (None: torch's global one) and decides every number.
    """
    if isinstance(shape, TTMShape):
        return random_ttm_cores(shape, TABLE_STD if std is None else std, generator)
    assert isinstance(shape, TTShape)
    return random_tt_cores(shape, shape.inputs**-0.5 if std is None else std, generator)


def random_tt_cores(shape: TTShape, std: float, generator: torch.Generator | None = None) -> list[Tensor]:
    """float64 CPU cores of a linear layer whose weight has the Frobenius norm of one with entries N(0, std²).

    The norm is met exactly, padding or not; both merged sides are isometries, so that no direction is favoured.
    """
    cores = [
        _random_core((left, 1, mode, right), k < shape.left_cores, generator).squeeze(1)
        for k, (left, mode, right) in enumerate(shape.core_shapes)
    ]
    return spread_scale(cores, std * sqrt(shape.dense_parameters) / _product_norm(*merge_sides(cores, shape)))


def random_ttm_cores(shape: TTMShape, std: float, generator: torch.Generator | None = None) -> list[Tensor]:
    """float64 CPU cores of an embedding table whose entries have mean square std², padding included.

    Every slice of one vocabulary digit is an isometry by itself, so that rows are of similar length. A table of two
    plain factors starts as a narrow table with entries of mean square std² and a projection that keeps it (as in
    ALBERT, Lan et al. 2020): AdamW then turns the projection slowly and the rows fast. docs/recipe.md has the gain.
    """
    shapes = enumerate(shape.core_shapes)
    cores = [_random_core(core_shape, k < shape.left_cores, generator) for k, core_shape in shapes]
    entries = prod(shape.in_modes) * prod(shape.out_modes)
    scale = std * sqrt(entries) / _train_norm(cores)
    if shape.table_rank is None:
        return spread_scale(cores, scale)
    gain = sqrt(shape.outputs / shape.table_rank)
    return [cores[0] * scale / gain, cores[1] * gain]


def spread_scale(cores: list[Tensor], scale: float) -> list[Tensor]:
    """Multiplies the train by `scale`, every core by the same share of it, so that no core dwarfs another.

    At 0 only the last core is 0: if all were, no core would have a gradient.
    """
    if scale == 0:
        return [*cores[:-1], torch.zeros_like(cores[-1])]
    return [core * scale ** (1 / len(cores)) for core in cores]


def _random_core(shape: Modes, is_left: bool, generator: torch.Generator | None) -> Tensor:
    """A core (A, V, E, B) whose slices along V are isometries from the outer end of the train to its middle.

    Left of the middle the slice is unfolded to (A·E, B), right of it to (A, E·B): then it keeps the norm of a vector
    that comes from its neighbour. If the unfolding is too narrow for that, its shorter side is orthonormal.
    """
    a, v, e, b = shape
    rows, columns = (a * e, b) if is_left else (a, e * b)
    tall = torch.randn(v, max(rows, columns), min(rows, columns), dtype=torch.float64, generator=generator)
    q, r = torch.linalg.qr(tall)
    # Without LAPACK's choice of signs the isometries are uniformly distributed (Mezzadri 2007).
    q = q * r.diagonal(dim1=1, dim2=2).sign()[:, None, :]
    slices: Tensor = q if rows >= columns else q.transpose(1, 2)
    return slices.reshape(v, a, e, b).transpose(0, 1)


def _product_norm(left_PR: Tensor, right_RQ: Tensor) -> float:
    """Frobenius norm of left @ right from two R by R Gram matrices: the product itself is never formed."""
    return float((left_PR.T @ left_PR).mul(right_RQ @ right_RQ.T).sum().sqrt())


def _train_norm(cores_AVEB: list[Tensor]) -> float:
    """Frobenius norm of a whole train, padding included: the Gram matrix of all cores left of a bond, bond by bond.

    No tensor is larger than a core; half of a table of 10⁷ rows would be larger than all its cores.
    """
    gram_AA = torch.ones(1, 1, dtype=torch.float64)
    for core_AVEB in cores_AVEB:
        weighted_AVEB = (gram_AA @ core_AVEB.flatten(1)).view_as(core_AVEB)
        gram_AA = core_AVEB.flatten(0, 2).T @ weighted_AVEB.flatten(0, 2)
    return float(gram_AA.sqrt())
