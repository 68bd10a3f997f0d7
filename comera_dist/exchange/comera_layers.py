"""Layers whose weights are stored as comera_dist trained them.

This file is a part of exported models; it needs torch alone.

Shapes: N inputs, M outputs of a layer (of a table: rows and width). A forward pass computes the matrix (N, M) anew.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class StoredLayer(nn.Module):
    """The parameters that `record` names, and a bias (M,) if `has_bias`.

    `record` is the layer's plan as comera_dist writes it, with the sizes of its parameters ("tensors") and whether it
    is a table ("is_table").
    """

    def __init__(self, record: dict[str, Any], has_bias: bool = False):
        super().__init__()
        self.record = record
        for name, size in record["tensors"].items():
            self.register_parameter(name, nn.Parameter(torch.empty(size)))
        self.bias = nn.Parameter(torch.empty(record["outputs"])) if has_bias else None

    def matrix(self) -> Tensor:
        """The matrix (N, M)."""
        padded: Tensor = MATRICES[self.record["format"]](self)
        return padded[: self.record["inputs"], : self.record["outputs"]]

    def parts(self, prefix: str) -> list[Tensor]:
        """The parameters whose names begin with `prefix`, in order."""
        return [getattr(self, name) for name in self.record["tensors"] if name.startswith(prefix)]

    def gated_cores(self) -> list[Tensor]:
        """All cores, with every gate multiplied into the core on its left."""
        cores, gates = self.parts("core_"), self.parts("gate_")
        return [core * gate for core, gate in zip(cores, gates, strict=False)] + cores[len(gates) :]


class StoredLinear(StoredLayer):
    """y (…, M) of x (…, N)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.matrix().T, self.bias)


class StoredTable(StoredLayer):
    """Rows (…, M) of ids (…)."""

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.matrix())


class Bottleneck(StoredLayer):
    """y (…, M) of x (…, N): two matrices with SiLU between them, which no single matrix equals."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.parts("core_")
        return F.linear(F.silu(x @ first) * self.get_parameter("gate_1"), second.T, self.bias)


class SharedMatrix(nn.Module):
    """A matrix (M, N) that several layers use."""

    def __init__(self, size: tuple[int, int]):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))


class Mixture(StoredLinear):
    """y (…, M) of x (…, N) by a mixture of matrices, of which the layer may own one (`shared`)."""

    def __init__(self, record: dict[str, Any], has_bias: bool = False):
        tensors = dict(record["tensors"])
        own = tensors.pop("shared.weight", None)
        super().__init__({**record, "tensors": tensors}, has_bias)
        self.shared = None if own is None else SharedMatrix(own)
        self._owners: tuple[nn.Module, ...] = ()

    def share(self, owners: Sequence[nn.Module]) -> None:
        """Takes the owners of the matrices, in a tuple, so that their parameters are not listed a second time."""
        self._owners = tuple(owners)

    def matrix(self) -> Tensor:
        shared: list[Tensor] = [owner.get_parameter("shared.weight") for owner in self._owners]
        return torch.einsum("a,amn->nm", self.get_parameter("mixture"), torch.stack(shared))


class Removed(StoredLayer):
    """y (…, M) of x (…, N): zeros, or the bias."""

    def forward(self, x: Tensor) -> Tensor:
        zeros = x.new_zeros(*x.shape[:-1], self.record["outputs"])
        return zeros if self.bias is None else zeros + self.bias


class TiedOutput(nn.Module):
    """Products (…, N) of x (…, M) with the rows of a table, and the bias (N,) of `head` if it has one."""

    def __init__(self, table: StoredTable, head: nn.Module):
        super().__init__()
        self._parts = (table, head)  # a tuple, so that their parameters are not listed a second time

    def forward(self, x: Tensor) -> Tensor:
        table, head = self._parts
        assert isinstance(table, StoredTable)
        return F.linear(x, table.matrix(), getattr(head, "bias", None))


def stored_layer(record: dict[str, Any], has_bias: bool) -> StoredLayer:
    """The layer of a record, without values."""
    if record["is_table"]:
        return StoredTable(record)
    return OTHERS.get(record["format"], StoredLinear)(record, has_bias)


def _train(layer: StoredLayer) -> Tensor:
    """Of cores (r, mode, r'): those of the inputs come first."""
    cores, ins = layer.gated_cores(), len(layer.record["in_modes"])
    left, right = (reduce(lambda x, core: torch.tensordot(x, core, 1), part) for part in (cores[:ins], cores[ins:]))
    return left.flatten(0, -2) @ right.flatten(1)


def _train_matrix(layer: StoredLayer) -> Tensor:
    """Of cores (r, v, e, r') with a mode of the rows and a mode of the width each."""

    def merge(x: Tensor, core: Tensor) -> Tensor:
        return torch.einsum("vea,awfb->vwefb", x, core).flatten(2, 3).flatten(0, 1)

    first, *rest = layer.gated_cores()
    return reduce(merge, rest, first[0])[..., 0]


def _blocks(layer: StoredLayer) -> Tensor:
    """Of core_1 (n, c, m, r) and core_2 (m, r, n, b): block (i, j) of the matrix is a product (c, r) x (r, b)."""
    return torch.einsum("icjk,jkib->icjb", *layer.gated_cores()).flatten(2).flatten(0, 1)


def _mixed_dimension(layer: StoredLayer) -> Tensor:
    """Of blocks of rows (V_j, K_j), and parts (K_j, D) of the projection. A linear layer is such a table turned."""
    projections = torch.split(layer.get_parameter("projection"), layer.record["ranks"])
    table = torch.cat([rows @ part for rows, part in zip(layer.parts("rows_"), projections, strict=True)])
    return table if layer.record["is_table"] else table.T


MATRICES: dict[str, Callable[[StoredLayer], Tensor]] = {
    "tensor_train": _train,
    "tensor_train_matrix": _train_matrix,
    "block_train": _blocks,
    "mixed_dimension": _mixed_dimension,
}
# Linear layers that have no matrix, or do not store it alone.
OTHERS: dict[str, type[StoredLayer]] = {"bottleneck": Bottleneck, "shared": Mixture, "removed": Removed}
FORMATS = {*MATRICES, *OTHERS}
