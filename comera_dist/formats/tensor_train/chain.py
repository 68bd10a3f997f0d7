"""A linear layer contracted core by core in opt_einsum's order, without merging its sides.

Shapes: T tokens, N in-features, M out-features; x is (…, N), cores are (r, mode, r').
"""

from functools import cache
from math import prod

from opt_einsum import contract_expression
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.tensor_train.contraction_plan import ContractionPlan
from comera_dist.formats.tensor_train.train_shapes import TTShape
from comera_dist.ops.autocast import compute_dtype


def contract_chain(x: Tensor, cores: list[Tensor], shape: TTShape, plan: ContractionPlan) -> Tensor:
    """y (…, M) of x (…, N) in the dtype of x or of autocast; backward keeps what lies between the cores."""
    dtype = compute_dtype(x)
    padding = prod(shape.in_modes) - shape.in_features
    x_TN = F.pad(x.reshape(-1, shape.in_features).to(dtype), (0, padding))
    operands = [x_TN.unflatten(1, shape.in_modes), *(core.to(dtype) for core in cores)]
    y_TM = _expression(plan, shape)(*operands, backend="torch").flatten(2).squeeze(0)
    return y_TM[:, : shape.out_features].reshape(*x.shape[:-1], shape.out_features)


@cache
def _expression(plan: ContractionPlan, shape: TTShape):
    """What opt_einsum executes; it reads sizes only to find an order, which the plan has."""
    return contract_expression(plan.equation, (1, *shape.in_modes), *shape.core_shapes, optimize=plan.order)
