"""Makes a training step on tensors without values, and counts the bytes of all tensors that live and all operations.

Tensors without values (torch calls them fake) take no memory and no time to compute. They take the same path through
model, autograd and recomputation as real ones, so nothing about a format or a model is written down twice.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from comera_dist.costs.operations import Operations, Work
from comera_dist.models.checkpointed_block import checkpoint_blocks
from comera_dist.runtime.forward import AutocastModel

aten = torch.ops.aten


@dataclass(frozen=True)
class BlankStep:
    """A forward and backward pass of a micro batch.

    `kept` are the bytes besides the weights that the forward pass keeps for the backward pass, `peak` those at the peak
    of both, with temporary tensors and with gradients as far as they exist then. `work` are the operations.
    """

    kept: int
    peak: int
    work: Work


class LiveBytes(TorchDispatchMode):
    """Within this block `now` is the size of all tensors that were made in it and still live, `peak` its largest value.

    `most_distinct` answers how many different ids a tensor without values has, as a lookup asks. None: it has values.
    """

    def __init__(self, most_distinct: int | None = None):
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation
        self.now = self.peak = 0
        self._most_distinct, self._seen = most_distinct, dict[int, Any]()

    def __torch_dispatch__(self, operation: Any, types: Any, operands: Any = (), options: Any = None) -> Any:
        if self._most_distinct is not None and operation is aten._local_scalar_dense.default:
            return 0  # the least and the largest id of a batch: inside of every table
        if self._most_distinct is not None and operation is aten._unique2.default:
            result = _distinct(operands[0], self._most_distinct)
        else:
            result = operation(*operands, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._seen:
            self._seen[key] = weakref.ref(storage, lambda _: self._forget(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _forget(self, key: int, size: int) -> None:
        del self._seen[key]
        self.now -= size


def _distinct(ids_T: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct ids, the position of each id among them, and no counts."""
    return ids_T.new_empty(min(len(ids_T), most)), torch.empty_like(ids_T), ids_T.new_empty(0)


def blank_step(
    build: Callable[[], nn.Module],
    batch: Callable[[], tuple[Tensor, ...]],
    precision: str,
    activation_checkpointing: str,
    most_distinct: int,
    micro_batches: int = 1,
    frees_gradients: bool = False,
) -> BlankStep:
    """A forward and backward pass of the model over a batch, on a CPU.

    `build` and `batch` are called where tensors have no values. With several `micro_batches` the gradients of the first
    one live during the others. With `frees_gradients` each gradient is freed as soon as it is complete.
    """
    with FakeTensorMode(), LiveBytes(most_distinct) as live, Operations() as counted:
        model = build()
        checkpoint_blocks(model, activation_checkpointing)
        if frees_gradients:
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(_free)  # type: ignore[no-untyped-call]  # torch has no annotation
        module, tensors = AutocastModel(model, precision), batch()
        before = live.now
        live.peak = before
        for _ in range(min(2, micro_batches)):
            counted.work.clear()
            loss = module(*tensors)
            kept = live.now - before
            loss.backward()
        held = 0 if micro_batches == 1 or frees_gradients else 1
        gradients = held * sum(p.numel() * p.element_size() for p in model.parameters())
    return BlankStep(kept - gradients, live.peak - before, counted.work)


def _free(parameter: Tensor) -> None:
    parameter.grad = None
