"""Bases of modules whose parameters a plan names: any such module, and cores with gates on the bonds between them."""

from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from comera_dist.formats.base import GATE, MatrixPlan, Resizable

M = TypeVar("M", bound=MatrixPlan)
P = TypeVar("P", bound=Resizable)


class PlannedLayer(nn.Module, Generic[M]):
    """A module with the parameters `plan.tensors`, and a bias (M,) of zeros if `bias` is set.

    Gates start open, as ones. Other parameters have no values until they are drawn or loaded.

    Parameters are registered one by one, not in a ParameterList: ZeRO stage 3 gathers the parameters of the module
    whose forward runs, and a list has no forward.
    """

    def __init__(self, plan: M, bias: bool = False, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.plan = plan
        for name, size in plan.tensors.items():
            new = torch.ones if name.startswith(GATE) else torch.empty
            self.register_parameter(name, nn.Parameter(new(size, dtype=dtype)))
        self.bias = nn.Parameter(torch.zeros(plan.outputs, dtype=dtype)) if bias else None
        # The names of nn.Embedding and nn.Linear, for code that reads them from any such layer.
        if plan.is_embedding:
            self.num_embeddings, self.embedding_dim = plan.inputs, plan.outputs
        else:
            self.in_features, self.out_features = plan.inputs, plan.outputs

    def extra_repr(self) -> str:
        return f"{self.plan.inputs} → {self.plan.outputs}, {self.plan.description}, bias={self.bias is not None}"


class GatedLayer(PlannedLayer[P]):
    """Cores with a vector of gates on each bond between them."""

    @property
    def gates(self) -> list[nn.Parameter]:
        """gate_k (r_k,) for each inner bond, in order."""
        return [getattr(self, f"{GATE}{k}") for k in range(1, len(self.plan.bonds) + 1)]

    def extra_repr(self) -> str:
        plan = self.plan
        return f"{plan.inputs} → {plan.outputs}, {plan.description}, ranks {plan.bonds}, bias={self.bias is not None}"


def opened(gate: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of a gate that changes nothing: a weight of ones, and every moment zero."""
    return {kind: torch.full_like(old, float(kind == "weight")) for kind, old in gate.items()}


def never_zero(roots: Tensor) -> Tensor:
    """Roots of singular values, with 1 where a weight lacks rank: the scale of the first of two factors.

    The other factor has 0 there. If both had, neither would have a gradient.
    """
    precision = torch.finfo(roots.dtype).eps ** 0.5
    return roots.where(roots > precision * roots.max(), 1)
