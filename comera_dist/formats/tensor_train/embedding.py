"""An embedding table stored as a tensor-train matrix.

Shapes: T tokens looked up, U distinct ones among them, V vocabulary, D width; a part of the train is a table
(A, V, E, B) of blocks between the bonds A and B, X = A·E·B numbers a block.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.contraction import merge_chain, merge_table
from comera_dist.formats.tensor_train.cores import random_ttm_cores
from comera_dist.formats.tensor_train.lookup_plan import plan_lookup
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.formats.tensor_train.train_shapes import TTMShape
from comera_dist.formats.tensor_train.tt_svd import ttm_from_dense

DEFAULT_STD = 0.02


class TTMEmbedding(TensorTrain):
    """Looks up rows of a (V, D) table that exists only as cores (r_{k-1}, v_k, e_k, r_k) and their gates.

    Entries start with mean square std²; or from `cores`, where given, as ttm_from_dense makes them. Rows come
    in the dtype of the cores, as those of nn.Embedding do.
    """

    def __init__(
        self,
        shape: TTMShape,
        std: float = DEFAULT_STD,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        cores: list[Tensor] | None = None,
    ):
        super().__init__(shape, random_ttm_cores(shape, std, generator) if cores is None else cores, device, dtype)
        self.num_embeddings, self.embedding_dim = shape.num_embeddings, shape.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        """Rows (…, D) of the ids (…), each distinct id computed once. IndexError for an id outside the table.

        The check is made on the CPU only: on a GPU it would stop the queue of work at every step.
        """
        _check_ids(ids, self.num_embeddings)
        if len(self.gates) == 0:
            return F.embedding(ids, self.to_dense())
        distinct_U, position_T = _distinct(ids.flatten(), self.num_embeddings)
        return F.embedding(position_T, self._rows(distinct_U)).reshape(*ids.shape, self.embedding_dim)

    def _rows(self, ids_U: Tensor) -> Tensor:
        """Rows (U, D): of each part that the planner cuts the train into, the block of each id, multiplied.

        Gathers through F.embedding, whose backward is a sorted sum and not a scatter of single numbers.
        """
        cores, blocks = self.gated_cores(), []
        for first, stop in reversed(plan_lookup(self.shape, len(ids_U), ids_U.device.type)):
            part_AVEB = merge_chain(cores[first:stop])
            a, rows, e, b = part_AVEB.shape
            block_UX = F.embedding(ids_U % rows, part_AVEB.transpose(0, 1).flatten(1))
            blocks.append(block_UX.unflatten(1, (a, 1, e, b)))
            ids_U = ids_U // rows
        return merge_chain(blocks[::-1]).flatten(1)[:, : self.embedding_dim]

    def to_dense(self) -> Tensor:
        """The whole table (V, D); differentiable, 2·V·D·R FLOPs."""
        return merge_table(self.gated_cores(), self.shape)

    @classmethod
    def from_dense(cls, table_VD: Tensor, shape: TTMShape, tolerance: float | None = None) -> "TTMEmbedding":
        """The embedding closest to a dense table that TT-SVD finds: ranks of `shape`, fewer where `tolerance` allows.

        `tolerance` bounds the relative Frobenius error as far as those ranks reach. Raises ConfigError for a
        table of another size.
        """
        table_VD = table_VD.detach()
        cores, shape = ttm_from_dense(table_VD, shape, tolerance)
        return cls(shape, device=table_VD.device, cores=cores)

    def extra_repr(self) -> str:
        shape = self.shape
        modes = f"{'·'.join(map(str, shape.vocab_modes))} x {'·'.join(map(str, shape.width_modes))}"
        return f"{shape.num_embeddings} x {shape.embedding_dim}, modes {modes}, ranks {shape.ranks}"


def _distinct(ids_T: Tensor, num_embeddings: int) -> tuple[Tensor, Tensor]:
    """The distinct ids (U) in rising order, and where among them each id is (T).

    How many there are, only the device knows. Where asking it would stop its queue of work, U is the most that there
    can be, min(T, V), and the places beyond the last distinct id hold id 0, at which no position points.
    """
    if ids_T.device.type == "cpu" or len(ids_T) == 0:
        return _unique(ids_T)
    return _distinct_at_most(ids_T, min(len(ids_T), num_embeddings))


@torch.compiler.disable  # a size that depends on values cannot be compiled
def _unique(ids_T: Tensor) -> tuple[Tensor, Tensor]:
    return torch.unique(ids_T, return_inverse=True)


def _distinct_at_most(ids_T: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    sorted_T, order_T = ids_T.sort()
    is_next_T = F.pad(sorted_T[1:] != sorted_T[:-1], (1, 0))
    rank_T = is_next_T.cumsum(0)
    distinct_U = sorted_T.new_zeros(limit).scatter_(0, rank_T, sorted_T)
    return distinct_U, torch.empty_like(order_T).scatter_(0, order_T, rank_T)


@torch.compiler.disable
def _check_ids(ids: Tensor, num_embeddings: int) -> None:
    if ids.device.type != "cpu" or ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= num_embeddings:
        raise IndexError(
            f"id {low if low < 0 else high} is outside the table of {num_embeddings} rows; take data that were "
            "prepared with the tokenizer or the category tables that the model was made for"
        )
