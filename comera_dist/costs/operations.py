"""Counts the operations of a training step on tensors without values; a machine's time is predicted from them.

As in live_memory.py, the step takes the path of a real one through model, autograd and recomputation. It is counted as
a CPU makes it: a GPU may take another kernel for attention or another path through a layer.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default

# Make a tensor or another view of it, and read or write nothing.
_WITHOUT_WORK = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
_WITHOUT_WORK |= {aten._unsafe_view, aten.detach, aten.alias, aten.lift_fresh}


class Operation(NamedTuple):
    """A kernel: multiply-adds × 2 of its products, bytes that it reads and writes, and bytes of a number."""

    flops: int
    bytes_moved: int
    itemsize: int


Work = Counter[Operation]


class Operations(TorchDispatchMode):
    """Within this block `work` counts every operation that computes, reads or writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.work = Work()

    def __torch_dispatch__(self, operation: Any, types: Any, operands: Any = (), options: Any = None) -> Any:
        if operation is _DEVICE:  # two of three calls ask a tensor without values where it is; it has the answer itself
            return operands[0].fake_device
        options = options or {}
        result = operation(*operands, **options)
        packet = operation._overloadpacket
        if operation.is_view or packet in _WITHOUT_WORK:
            return result
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):  # not a question about a tensor
            tensors = [leaf for leaf in tree_leaves((operands, options, result)) if isinstance(leaf, Tensor)]
            # A tensor that is changed in place is an operand and the result, so it counts as read and as written.
            moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            flops = _flops(packet, operands, options, result)
            self.work[Operation(flops, moved, tensors[0].element_size())] += 1
        return result


def _flops(packet: Any, operands: Any, options: dict[str, Any], result: Any) -> int:
    if packet in _FLOPS:
        return _FLOPS[packet](*operands)
    return int(flop_registry[packet](*operands, **options, out_val=result)) if packet in flop_registry else 0


def _attention(query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, is_causal: bool = False) -> int:
    """Scores and the weighted sum of values; a causal kernel leaves out the half that no token sees."""
    rows, heads, length, width = query.shape
    whole = 4 * rows * heads * length * key.shape[2] * width
    return whole // 2 if is_causal else whole


def _attention_backward(_: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> int:
    # Five products instead of two, because the scores are computed again (Dao 2023, FlashAttention-2, section 4.1).
    return 5 * _attention(query, key, value, 0.0, is_causal=rest[3]) // 2


# Operations that torch's registry does not know.
_FLOPS: dict[Any, Callable[..., int]] = {
    aten.addmm_: lambda _, left, right: 2 * left.shape[0] * left.shape[1] * right.shape[1],
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
