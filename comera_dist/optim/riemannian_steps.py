"""The torch optimizer of `optim.loro`, with the geometry of matrices W = X·Yᵀ of one rank.

Shapes: X (N, R), Y (M, R); either of them and its Gram matrix are Z (L, R) and (R, R).
"""

from collections import defaultdict
from math import sqrt

import torch
from torch import Tensor, nn

from comera_dist.errors import ConfigError
from comera_dist.optim.base import Group
from comera_dist.optim.matrix_steps import MethodSteps

# Chosen: a direction of a factor whose squared singular value is below this share of their mean enlarges the other
# factor's step no further. Otherwise a nearly lost direction would make the step as large as rounding allows.
WEAKEST = 0.01
TINY = 1e-30  # keeps a factor of zeros from dividing

Pair = tuple[Tensor, Tensor]


class RiemannianSteps(MethodSteps):
    """Steps the two factors of each layer together. The group's `method` makes Adam's steps and knows the layers."""

    def step_group(self, group: Group) -> None:
        layers: dict[str, dict[str, nn.Parameter]] = defaultdict(dict)
        for parameter in group["params"]:
            layer, name = group["method"].places[parameter]
            layers[layer][name] = parameter
        for layer, parameters in layers.items():
            still = [name for name, parameter in parameters.items() if parameter.grad is None]
            if 0 < len(still) < len(parameters):
                raise ConfigError(
                    f"optim.kind = loro steps both factors and the gate of {layer} together, and no gradient has "
                    f"reached {', '.join(still)}; train all of them or freeze all, or set optim.kind=adamw"
                )
            if not still:
                self._step(group, parameters)

    def _step(self, group: Group, layer: dict[str, nn.Parameter]) -> None:
        method, lr, kept = group["method"], group["lr"], 1 - group["lr"] * group["weight_decay"]
        for parameter in layer.values():
            self.counted(group, parameter)
        first, second = (layer[name] for name in ("core_1", "core_2"))
        _fold(layer["gate_1"], first)
        factors = _as_X(first), _as_Y(second)
        directions = tuple(method.direction(self.state[core], core.grad) for core in (first, second))
        lifted = lift(factors, (_as_X(directions[0]), _as_Y(directions[1])))
        if method.is_exact(self.state[first]["step"]):
            news = retracted(factors, lifted, lr, kept)
            for core in (first, second):
                for moment in method.tensors(self.state[core]).values():
                    moment.zero_()
        else:
            news = tuple(sqrt(kept) * old - lr * step for old, step in zip(factors, lifted, strict=True))
        for old, new in zip(factors, news, strict=True):
            old.copy_(new)


def _as_X(core: Tensor) -> Tensor:
    """A view (N, R) of a tensor like core_1 (1, N, R)."""
    return core.detach().view(-1, core.shape[-1])


def _as_Y(core: Tensor) -> Tensor:
    """A view (M, R) of a tensor like core_2 (R, M, 1)."""
    return core.detach().view(core.shape[0], -1).mT


def _fold(gate: nn.Parameter, core: nn.Parameter) -> None:
    """Multiplies X by the gate, which becomes 1. The gradient of the product is that of X over the gate.

    Only the first step of a run that starts from another run's weights finds a gate that is not 1. The gradient of a
    closed gate is lost, and counts as 0.
    """
    assert core.grad is not None
    core.grad.mul_(torch.where(gate == 0, 0.0, 1 / gate))
    core.mul_(gate)
    gate.fill_(1.0)


def lift(factors: Pair, directions: Pair) -> Pair:
    """L_X and L_Y of `optim.loro`, from D_X and D_Y."""
    X, Y = factors
    inverse_X, inverse_Y = inverse_gram(X), inverse_gram(Y)
    steps = directions[0] @ inverse_Y, directions[1] @ inverse_X
    return _without_half(X, inverse_X, steps[0]), _without_half(Y, inverse_Y, steps[1])


def _without_half(Z_LR: Tensor, inverse_RR: Tensor, step_LR: Tensor) -> Tensor:
    """The step without half of its part in the space of Z's columns: the other factor's step has that part, too."""
    return step_LR - 0.5 * (Z_LR @ (inverse_RR @ (Z_LR.mT @ step_LR)))


def inverse_gram(Z_LR: Tensor) -> Tensor:
    """(ZᵀZ)⁻¹ (R, R), with eigenvalues below WEAKEST times their mean taken for that."""
    squares_R, turn_RR = torch.linalg.eigh(Z_LR.mT @ Z_LR)
    inverse_RR: Tensor = (turn_RR / squares_R.clamp_min(WEAKEST * squares_R.mean().clamp_min(TINY))) @ turn_RR.mT
    return inverse_RR


def retracted(factors: Pair, lifted: Pair, lr: float, kept: float) -> Pair:
    """Balanced factors of the best approximation of rank R to kept · X·Yᵀ − lr · (L_X·Yᵀ + X·L_Yᵀ).

    The sum is [X, L_X]·C·[Y, L_Y]ᵀ with the blocks kept · I, −lr · I, −lr · I and 0 of C. So it needs a singular value
    decomposition of 2R x 2R. The largest entry of each column of X is positive: rounding would choose the signs
    otherwise.
    """
    from torch.linalg import qr, svd

    R = factors[0].shape[1]
    (X_basis, X_upper), (Y_basis, Y_upper) = (qr(torch.cat(both, dim=1)) for both in zip(factors, lifted, strict=True))
    of_X, of_lifted = X_upper.split(R, dim=1)
    U, values, Vh = svd(torch.cat((kept * of_X - lr * of_lifted, -lr * of_X), dim=1) @ Y_upper.mT)
    roots_R = values[:R].sqrt()
    X, Y = X_basis @ (U[:, :R] * roots_R), Y_basis @ (Vh[:R].mT * roots_R)
    signs_R = X.gather(0, X.abs().argmax(dim=0, keepdim=True)).sign()
    return X * signs_R, Y * signs_R
