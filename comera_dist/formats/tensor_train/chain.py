"""A linear layer contracted core by core in opt_einsum's order, without merging its sides.

Shapes: T tokens, N in-features, M out-features; x is (…, N), cores are (r, mode, r').
"""

from functools import cache
from math import prod
from typing import Any

from opt_einsum import contract_expression
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.contraction_plan import ContractionPlan
from comera_dist.formats.tensor_train.train_shapes import TTShape
from comera_dist.ops.autocast import compute_dtype


def contract_chain(x: Tensor, cores: list[Tensor], shape: TTShape, plan: ContractionPlan) -> Tensor:
    """y (…, M) of x (…, N) in the dtype of x or of autocast; backward keeps the tensors between the cores."""
    dtype = compute_dtype(x)
    x_TN = F.pad(x.reshape(-1, shape.inputs).to(dtype), (0, prod(shape.in_modes) - shape.inputs))
    operands = [x_TN.view(-1, *shape.in_modes), *(core.to(dtype) for core in cores)]
    contracted: Tensor = _expression(plan, shape)(*operands, backend="torch")
    y_TM = contracted.flatten(2).squeeze(0)
    return y_TM[:, : shape.outputs].reshape(*x.shape[:-1], shape.outputs)


@cache
def _expression(plan: ContractionPlan, shape: TTShape) -> Any:
    """opt_einsum's callable; it reads sizes only to find an order, which the plan has."""
    return contract_expression(plan.equation, (1, *shape.in_modes), *shape.core_shapes, optimize=plan.order)
