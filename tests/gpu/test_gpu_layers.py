"""Layers alone are timed as CUDA graphs, and those that wait for the GPU as they are."""

import pytest
import torch
from torch import nn

from benchmarks.layers import Side

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device; there is none"),
]


class Waiting(nn.Linear):
    def forward(self, x):
        return super().forward(x) * float(x[0, 0])


@pytest.mark.parametrize(("kind", "is_graph"), [(nn.Linear, True), (Waiting, False)])
def test_a_layer_is_timed_as_a_graph_if_it_can_be(kind, is_graph):
    side = Side(kind(64, 32, device="cuda"), torch.randn(16, 64, device="cuda"), torch.randn(16, 32, device="cuda"))
    assert side.milliseconds() > 0
    assert isinstance(getattr(side._timed, "__self__", None), torch.cuda.CUDAGraph) == is_graph
    assert [gradient.shape for gradient in side.step()] == [(16, 64), (32, 64), (32,)]
