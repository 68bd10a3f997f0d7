"""The product of an input with two narrow factors, a gate and perhaps an activation between them.

Shapes: N in-features, R width of the bottleneck, M out-features; x is (…, N), y is (…, M).
"""

from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS = {"none": lambda h: h, "silu": F.silu}


def bottleneck_product(
    x: Tensor, A_NR: Tensor, gate_R: Tensor, B_RM: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """y = act(x A) · gate B + bias, of shape (…, M): `activation` "none" or "silu" acts on the R-wide intermediate.

    Computed and returned in the dtype of x or of autocast, on any device. bottleneck_kernel has the same in one
    kernel for GPUs.
    """
    h = x @ A_NR.to(x.dtype)
    z = (ACTIVATIONS[activation](h) * gate_R).to(h.dtype)
    y = z @ B_RM.to(x.dtype)
    return y if bias is None else y + bias.to(y.dtype)
