"""State that is held while an engine is made anew passes between processes in parts, whole and in order."""

import pytest
import torch

from comera_dist.ranks import rebuild
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Decision
from comera_dist.ranks.resize import Resize
from comera_dist.runtime.processes import alone

SHAPES = {"a.weight": (3, 4), "a.bias": (3,), "b.weight": (5, 2), "c.weight": (7,)}


class Recorded:
    """The processes of one, which remember how many numbers each broadcast had."""

    index, count, device = 0, 1, torch.device("cpu")

    def __init__(self):
        self.sizes = []

    def broadcast(self, values, source):
        self.sizes.append(values.numel())
        return alone().broadcast(values, source)


class KeepsWeights:
    """An engine whose optimizer keeps a moment of every weight and nothing of a bias."""

    def __init__(self):
        self.processes = Recorded()
        self.shapes = {name: torch.Size(shape) for name, shape in SHAPES.items()}
        self.tensors = {
            name: {kind: torch.randn(shape) for kind in ("weight", "exp_avg")[: 2 - name.endswith("bias")]}
            for name, shape in SHAPES.items()
        }

    def state(self, owners, device):
        assert device.type == "cpu"  # a GPU is full of the engine
        return {name: dict(self.tensors[name]) for name in owners}


@pytest.mark.parametrize(("most", "broadcasts"), [(1, [12, 0, 10, 7]), (12, [12, 10, 7]), (22, [22, 7]), (99, [29])])
def test_parameters_pass_whole_and_in_order_some_at_a_time(monkeypatch, most, broadcasts):
    monkeypatch.setattr(rebuild, "AT_ONCE", most)
    engine, layout = KeepsWeights(), GateLayout.of({})
    held = rebuild.HeldState(engine, Resize(layout, Decision(torch.zeros(0).bool(), torch.zeros(0).long()), seed=0))
    moments = {name: {"exp_avg": shape} if name.endswith("weight") else {} for name, shape in SHAPES.items()}
    found = list(held.states(moments))
    assert [name for name, _ in found] == list(SHAPES)
    for name, tensors in found:
        assert tensors.keys() == moments[name].keys()
        assert all(torch.equal(tensors[kind], engine.tensors[name][kind]) for kind in tensors)
    assert engine.processes.sizes == broadcasts
