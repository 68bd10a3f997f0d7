"""Chooses modes and ranks of tensor trains: no rank exceeds what its neighbours can fill, no train is too large.

Shapes: N in-features, M out-features, r middle rank. Pure Python: a plan exists before any tensor does.
"""

from itertools import accumulate, pairwise

from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.factorization import factorize, large_modes_outside
from comera_dist.formats.tensor_train.train_shapes import Modes, TTMShape, TTShape, check_modes

__all__ = ["Modes", "TTMShape", "TTShape", "clip_ranks", "factorize", "plan_tt", "plan_ttm"]


def plan_tt(
    in_features: int,
    out_features: int,
    order: int,
    rank: int,
    outer_rank: int | None = None,
    in_modes: Modes | None = None,
    out_modes: Modes | None = None,
) -> TTShape:
    """Plans a linear layer of `order` cores per side with middle rank `rank` and other bonds up to `outer_rank`.

    Bonds that are larger than their neighbours can fill are clipped. A side whose cores would hold at least as many
    numbers as its plain factor (N x r, r x M) becomes that factor, one core; order 1 is plain low rank. Given modes
    replace the balanced ones and, by their number, `order` on that side. Raises ConfigError.
    """
    _check_positive(in_features=in_features, out_features=out_features, order=order, rank=rank)
    _check_positive(outer_rank=1 if outer_rank is None else outer_rank)
    in_modes = tuple(in_modes or factorize(in_features, order))
    out_modes = tuple(out_modes or reversed(factorize(out_features, order)))
    check_modes("in_modes", in_modes, in_features)
    check_modes("out_modes", out_modes, out_features)
    middle, outer = len(in_modes), outer_rank or rank
    wanted = [outer] * (len(in_modes) + len(out_modes) - 1)
    wanted[middle - 1] = min(rank, in_features, out_features)
    ranks = clip_ranks((*in_modes, *out_modes), wanted)
    in_modes, in_ranks = _merged_if_larger(in_features, in_modes, ranks[: middle + 1])
    out_modes, out_ranks = _merged_if_larger(out_features, out_modes, ranks[middle:])
    return TTShape(in_features, out_features, in_modes, out_modes, (*in_ranks, *out_ranks[1:]))


def plan_ttm(
    num_embeddings: int,
    embedding_dim: int,
    order: int,
    rank: int,
    vocab_modes: Modes | None = None,
    width_modes: Modes | None = None,
) -> TTMShape:
    """Plans an embedding table of `order` cores with bonds up to `rank`, clipped to what their neighbours can fill.

    A train that would hold at least as many numbers as the table becomes the plain table, one core. Raises
    ConfigError.
    """
    _check_positive(num_embeddings=num_embeddings, embedding_dim=embedding_dim, order=order, rank=rank)
    order = len(vocab_modes or width_modes or range(order))
    vocab_modes = tuple(vocab_modes or large_modes_outside(factorize(num_embeddings, order)))
    # The largest width mode goes to the other end than the largest vocabulary mode: end cores of similar size.
    width_modes = tuple(width_modes or large_modes_outside(factorize(embedding_dim, order), start_left=False))
    sizes = tuple(v * e for v, e in zip(vocab_modes, width_modes, strict=False))
    shape = TTMShape(num_embeddings, embedding_dim, vocab_modes, width_modes, clip_ranks(sizes, [rank] * (order - 1)))
    if shape.num_parameters < shape.dense_parameters:
        return shape
    return TTMShape(num_embeddings, embedding_dim, (num_embeddings,), (embedding_dim,), (1, 1))


def clip_ranks(modes: Modes, bonds: list[int]) -> Modes:
    """The full ranks (1, r_1, …, 1) of a train, each bond clipped to what the cores on both of its sides can fill.

    r_k ≤ r_{k-1}·mode_k and r_k ≤ mode_{k+1}·r_{k+1}: one sweep in each direction reaches every farther bound too.
    """
    from_left = list(accumulate(zip(modes, bonds, strict=False), lambda r, step: min(step[1], r * step[0]), initial=1))
    from_right = [1]
    for mode, bond in zip(modes[:0:-1], from_left[:0:-1], strict=True):
        from_right.append(min(bond, mode * from_right[-1]))
    return (1, *reversed(from_right))


def _merged_if_larger(features: int, modes: Modes, ranks: Modes) -> tuple[Modes, Modes]:
    numbers = sum(left * mode * right for (left, right), mode in zip(pairwise(ranks), modes, strict=True))
    if numbers < features * max(ranks[0], ranks[-1]):
        return modes, ranks
    return (features,), (ranks[0], ranks[-1])


def _check_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name} = {size} was found, expected a positive number; set it to 1 or more")
