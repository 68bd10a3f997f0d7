"""A save takes no second copy of the state on the GPU, which has room for a step and for no more."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from two_devices import TwoDevices, is_on_gpu

from comera_dist.checkpoints.write import _share_of
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.processes import alone


class Watched(TwoDevices):
    """Notes the names of functions that make tensors on the GPU, in memory that is not in `known`."""

    def __init__(self, known: set[int]):
        super().__init__()
        self.known, self.made = known, []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and is_on_gpu(leaf) and leaf.data_ptr() not in self.known:
                self.made.append(function.__name__)
        return result


def engine_of(model):
    """An engine of ZeRO stage 0 whose optimizer keeps nothing, without DeepSpeed."""
    engine = Engine.__new__(Engine)
    engine.processes, engine._model = alone(), model
    engine._state = SimpleNamespace(gather=lambda: ((p, "weight", p.detach()) for p in model.parameters()))
    return engine


def test_a_save_copies_straight_to_the_cpu():
    model = nn.Linear(3, 4)
    with Watched({parameter.data_ptr() for parameter in model.parameters()}) as watched:
        for parameter in model.parameters():
            watched.put(parameter)
        share = _share_of(engine_of(model))
    assert watched.made == []
    assert not any(is_on_gpu(tensors["weight"]) for tensors in share.values())
    assert torch.equal(share["weight"]["weight"], model.weight)
    assert share["weight"]["weight"].data_ptr() != model.weight.data_ptr()
