"""Merges trains of small cores into few large matrices, which is all that a layer multiplies its input by.

Shapes: every core is (A, V, E, B): bonds A and B, a vocabulary (or feature) mode V and a width mode E, which
is 1 in linear layers. N in-features, M out-features, R the rank of the bond at which a train is split into
two halves.
"""

import torch
from torch import Tensor

from comera_dist.tensor.merge_order import merge_order
from comera_dist.tensor.train_shapes import TTMShape, TTShape


def merge_chain(cores_AVEB: list[Tensor]) -> Tensor:
    """Merges neighbouring cores into one tensor (A, V, E, B), cheapest order first, as plain matrix products.

    Runs in the cores' own precision even under autocast: the products are small and every token depends on
    them.
    """
    chain = list(cores_AVEB)
    bonds = (*(core.shape[0] for core in chain), chain[-1].shape[3])
    modes = tuple(core.shape[1] * core.shape[2] for core in chain)
    with torch.autocast(chain[0].device.type, enabled=False):
        for k in merge_order(bonds, modes):
            chain[k : k + 2] = [_merge_pair(chain[k], chain[k + 1])]
    return chain[0]


def merge_sides(cores: list[Tensor], shape: TTShape) -> tuple[Tensor, Tensor]:
    """The factors U (N, R) and V (R, M) of a linear layer; rows and columns that only pad the modes are sliced away."""
    cores_AVEB = [core.unsqueeze(2) for core in cores]
    middle = len(shape.in_modes)
    U_NR = merge_chain(cores_AVEB[:middle]).flatten(0, 2)
    V_RM = merge_chain(cores_AVEB[middle:]).flatten(1, 3)
    return U_NR[: shape.in_features], V_RM[:, : shape.out_features]


def merge_halves(cores: list[Tensor], shape: TTMShape) -> tuple[Tensor, Tensor]:
    """The half tables (V_left, E_left, R) and (R, V_right, E_right) of an embedding of two cores or more, padding kept.

    Token i has the row block i // V_right of the left one and i % V_right of the right one.
    """
    return merge_chain(cores[: shape.split]).squeeze(0), merge_chain(cores[shape.split :]).squeeze(3)


def merge_table(cores: list[Tensor], shape: TTMShape) -> Tensor:
    """The whole embedding table (num_embeddings, embedding_dim)."""
    table_VE = merge_chain(cores).squeeze(3).squeeze(0)
    return table_VE[: shape.num_embeddings, : shape.embedding_dim]


def _merge_pair(left_AVEB: Tensor, right_BWFC: Tensor) -> Tensor:
    bond, (a, v, e), (w, f, c) = left_AVEB.shape[3], left_AVEB.shape[:3], right_BWFC.shape[1:]
    product = left_AVEB.reshape(-1, bond) @ right_BWFC.reshape(bond, -1)
    return product.reshape(a, v, e, w, f, c).transpose(2, 3).reshape(a, v * w, e * f, c)
