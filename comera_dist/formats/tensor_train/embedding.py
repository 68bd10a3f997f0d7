"""An embedding table stored as a tensor-train matrix.

Shapes: T tokens looked up, U distinct ones among them, V vocabulary, D width; a part of the train is a table
(A, V, E, B) of blocks between the bonds A and B, X = A·E·B numbers a block.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.contraction import merge_chain, merge_table
from comera_dist.formats.tensor_train.lookup_plan import Parts, plan_lookup
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.formats.tensor_train.train_shapes import TTMShape
from comera_dist.ops.autocast import without_autocast
from comera_dist.ops.products import table_cores


class TTMEmbedding(TensorTrain[TTMShape]):
    """Looks up rows of a (V, D) table that exists only as cores (r_{k-1}, v_k, e_k, r_k) and their gates.

    Rows have the dtype of the cores, as those of nn.Embedding do.
    """

    def forward(self, ids: Tensor) -> Tensor:
        """Rows (…, D) of the ids (…), each distinct id computed once. IndexError for an id outside the table.

        The check is made on the CPU only: on a GPU it would stop the queue of work at every step.
        """
        _check_ids(ids, self.plan.inputs)
        if len(self.gates) == 0:
            return F.embedding(ids, self.to_dense())
        distinct_U, position_T = _distinct(ids.flatten(), self.plan.inputs)
        return F.embedding(position_T, self.rows(distinct_U)).reshape(*ids.shape, self.plan.outputs)

    def rows(self, ids_U: Tensor, parts: Parts | None = None) -> Tensor:
        """Rows (U, D) of ids inside the table, each id computed: the product of one block from each part of the train.

        `parts` are by default those into which the planner cuts the train for this many ids (see `plan_lookup`). Of two
        plain factors all rows multiply the second one, which is not gathered for each.
        Gathers through F.embedding, whose backward sums sorted rows instead of a slow scatter of single numbers.
        """
        cores, blocks = table_cores(self.gated_cores()), []
        if parts is None and self.plan.table_rank is not None:
            (A_VK,), B_KD = self._plain_factors(cores)
            with without_autocast(B_KD):
                return F.embedding(ids_U, A_VK) @ B_KD
        parts = plan_lookup(self.plan, len(ids_U), ids_U.device.type) if parts is None else parts
        for first, stop in reversed(parts):
            part_AVEB = merge_chain(cores[first:stop])
            a, rows, e, b = part_AVEB.shape
            block_UX = F.embedding(ids_U % rows, part_AVEB.transpose(0, 1).flatten(1))
            blocks.append(block_UX.view(-1, a, 1, e, b))
            ids_U = ids_U // rows
        return merge_chain(blocks[::-1]).flatten(1)[:, : self.plan.outputs]

    def table_factors(self) -> tuple[list[Tensor], Tensor]:
        """A (V, K), a single block, and B (K, D), of a plan with a `table_rank`."""
        return self._plain_factors(self.gated_cores())

    def _plain_factors(self, cores: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        A_1V1K, B_K1D1 = cores
        return [A_1V1K[0, : self.plan.inputs, 0]], B_K1D1[:, 0, : self.plan.outputs, 0]

    def to_dense(self) -> Tensor:
        """The whole table (V, D); differentiable, 2·V·D·R FLOPs."""
        return merge_table(self.gated_cores(), self.plan)


def _distinct(ids_T: Tensor, num_embeddings: int) -> tuple[Tensor, Tensor]:
    """The distinct ids (U) in rising order, and for each id (T) its position among them.

    Only the device knows the number of distinct ids. Asking a GPU would stop its queue of work, so there U is the upper
    bound min(T, V); the places beyond the last distinct id hold id 0, and no position points there.
    """
    if ids_T.device.type == "cpu" or len(ids_T) == 0:
        distinct_U, position_T = _unique(ids_T)
        return distinct_U, position_T
    return distinct_at_most(ids_T, min(len(ids_T), num_embeddings))


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a size that depends on values cannot be compiled
def _unique(ids_T: Tensor) -> tuple[Tensor, Tensor]:
    return torch.unique(ids_T, return_inverse=True)  # type: ignore[no-any-return]  # torch annotates it as Any


def distinct_at_most(ids_T: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Up to `limit` distinct ids in rising order, then zeros, and for each id (T) its position among them."""
    sorted_T, order_T = ids_T.sort()
    is_next_T = F.pad(sorted_T[1:] != sorted_T[:-1], (1, 0))
    rank_T = is_next_T.cumsum(0)
    distinct_U = sorted_T.new_zeros(limit).scatter_(0, rank_T, sorted_T)
    return distinct_U, torch.empty_like(order_T).scatter_(0, order_T, rank_T)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # reads values, which would cut a compiled graph
def _check_ids(ids: Tensor, num_embeddings: int) -> None:
    if ids.device.type != "cpu" or ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= num_embeddings:
        raise IndexError(
            f"id {low if low < 0 else high} is outside the table of {num_embeddings} rows; take data that were "
            "prepared with the tokenizer or the category tables that the model was made for"
        )
