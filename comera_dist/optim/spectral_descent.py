"""The torch optimizer of `optim.spectral`.

Shapes: a factor is a batch of matrices (n, R, C); F factors are stepped together.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from comera_dist.optim.at_once import in_batches
from comera_dist.optim.base import RATE, Group
from comera_dist.optim.factors import Factor
from comera_dist.optim.in_a_loop import InALoop

STEPS = 5  # of Newton–Schulz, and the coefficients of its quintic polynomial: Jordan et al. 2024
QUINTIC = (3.4445, -4.7750, 2.0315)
# How many iterations are made at once in fp32. They are as exact as one by one: if singular values span six decades,
# the error is 1e-5 in spectral norm. Of five at once it is 5e-4: small squares drown in A's rounding errors.
JOINED = (3, 2)
TINY = 1e-7  # keeps a norm of zero from dividing; as torch.optim.Muon
FIRST_MOMENTUM = 0.85  # from which momentum rises: Jordan et al. 2024, in the speed runs of modded-nanogpt
# Numbers of the matrices that are stepped together. A step holds up to eight numbers for each of them besides weights,
# gradients and momenta. On a CPU all at once take 5 to 20% longer (measured, d=128 to 768); a GPU has launches to save.
AT_ONCE = {"cpu": 1 << 18, "gpu": 1 << 24}
WEAKEST = 0.1  # chosen: a factor with smaller singular values enlarges the steps of the others no further

Size = tuple[int, int, int]  # of a factor: n, R, C


@dataclass(frozen=True)
class Layout:
    """Constants of F factors that are stepped together, on their device: a CUDA graph may read them."""

    layers: int
    layer_F: Tensor  # number of each factor's layer
    full_F: Tensor  # Frobenius norm of a factor whose singular values are 1
    dense_F: Tensor  # √(M / N) / √K for a layer of N inputs and M outputs

    @classmethod
    def of(cls, factors: list[Factor], like: Tensor) -> "Layout":
        """All factors of a layer must be among `factors`."""
        layers = {layer: index for index, layer in enumerate(dict.fromkeys(f.layer for f in factors))}
        return cls(
            len(layers),
            like.new_tensor([layers[f.layer] for f in factors], dtype=torch.int64),
            like.new_tensor([sqrt(f.size[0] * min(f.size[1:])) for f in factors]),
            like.new_tensor([sqrt(f.dense_size[0] / f.dense_size[1] / f.count) for f in factors]),
        )


class SpectralDescent(InALoop):
    """Steps each factor G_k by 8 · lr · ρ_k · U_k Vᵀ_k, from the momentum U S Vᵀ of each of its matrices.

    ρ_k = √(M / N) / (√K · Π_{j≠k} σ_j), with σ_j the root mean square of the singular values of factor j. To first
    order the weight then changes by K terms, each of the spectral norm of a dense step over √K. That of a dense step is
    √(M / N), with which an input of entries of size 1 changes outputs by as much at every width, so one `lr` suits all
    widths (Yang et al. 2023, "A Spectral Condition for Feature Learning", arXiv 2310.17813). Weight decay scales each
    factor by the K-th root of 1 − 8 · lr · weight_decay.

    A factor without a gradient, as a frozen one, stays as it is; the steps of the others count it as it stands.
    A step never waits for the device, so it can be part of a CUDA graph if learning rates are tensors.
    """

    def __init__(
        self,
        groups: list[Group],
        factors: Mapping[nn.Parameter, Factor],
        lr: float,
        momentum: float = 0.95,
        warmup_steps: int = 0,
    ):
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self._factors, self._momentum, self._warmup_steps = factors, momentum, warmup_steps
        self._layouts: dict[tuple[nn.Parameter, ...], Layout] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None, "a closure is not supported"
        for group in self.param_groups:
            if any(p.grad is not None for p in group["params"]):
                self._step(group, group["params"])

    def _step(self, group: Group, whole: list[nn.Parameter]) -> None:
        key, lr = tuple(whole), RATE * group["lr"]
        if key not in self._layouts:
            self._layouts[key] = Layout.of([self._factors[p] for p in whole], whole[0])
        sizes = (lr * step_sizes(whole, self._layouts[key])).unbind()
        parameters = [p for p in whole if p.grad is not None]
        scales = [size for p, size in zip(whole, sizes, strict=True) if p.grad is not None]
        factors = [self._factors[p] for p in parameters]
        kept = 1 - lr * group["weight_decay"]
        by_count = {f.count: kept ** (1 / f.count) for f in factors}
        torch._foreach_mul_([*parameters], [by_count[f.count] for f in factors])
        for indices in stepped_at_once([f.size for f in factors], AT_ONCE["cpu" if parameters[0].is_cpu else "gpu"]):
            members = [parameters[index] for index in indices]
            directions = self._directions(members, [factors[index].size for index in indices])
            torch._foreach_addcmul_([*members], directions, [scales[index] for index in indices], -1)

    def _directions(self, parameters: list[nn.Parameter], sizes: list[Size]) -> list[Tensor]:
        """U Vᵀ of the momenta, shaped like the parameters."""
        batches = [ahead.reshape(size) for ahead, size in zip(self._momenta(parameters), sizes, strict=True)]
        return [found.reshape(p.shape) for found, p in zip(orthogonal(batches), parameters, strict=True)]

    def _momenta(self, parameters: list[nn.Parameter]) -> tuple[Tensor, ...]:
        """Means of gradients with Nesterov's look-ahead, after they have taken in the present gradients."""
        states = [self.state[p] for p in parameters]
        for p, state in zip(parameters, states, strict=True):
            if not state:
                state |= {"step": p.new_zeros(()), "momentum_buffer": torch.zeros_like(p)}
        momenta = [state["momentum_buffer"] for state in states]
        torch._foreach_add_([state["step"] for state in states], 1)
        beta = self._present_momentum(states[0]["step"])
        news = torch._foreach_mul([p.grad for p in parameters if p.grad is not None], 1 - beta)
        torch._foreach_mul_(momenta, beta)
        torch._foreach_add_(momenta, list(news))
        ahead = torch._foreach_mul(momenta, beta)
        torch._foreach_add_(list(ahead), list(news))
        return ahead

    def _present_momentum(self, step: Tensor) -> Tensor:
        """At the first step FIRST_MOMENTUM or less, after the warm-up `momentum`; 0-dimensional, on the device."""
        rise = self._momentum - min(FIRST_MOMENTUM, self._momentum)
        left = (1 - (step - 1) / max(1, self._warmup_steps)).clamp(0, 1) * (self._warmup_steps > 0)
        return self._momentum - rise * left


def step_sizes(parameters: list[nn.Parameter], layout: Layout) -> Tensor:
    """ρ_k (F,) of each factor."""
    norms_F = torch.stack(torch._foreach_norm([*parameters]))
    logs_F = (norms_F / layout.full_F).clamp_min(WEAKEST).log()
    product_F = norms_F.new_zeros(layout.layers).index_add(0, layout.layer_F, logs_F)[layout.layer_F]
    return layout.dense_F * (logs_F - product_F).exp()


def stepped_at_once(sizes: list[Size], numbers: int) -> list[list[int]]:
    """Groups of indices of equal sizes, up to transposition, with at most so many numbers if there are several."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, (_, *shape) in enumerate(sizes):
        by_shape[tuple(sorted(shape))].append(index)
    batches = (in_batches({i: prod(sizes[i]) for i in indices}, numbers) for indices in by_shape.values())
    return list(chain.from_iterable(batches))


def orthogonal(batches: list[Tensor]) -> list[Tensor]:
    """For each batch (n, R, C) of matrices U S Vᵀ about U Vᵀ. All have one shape R x C, or its transpose.

    "About": Newton–Schulz iterations with these coefficients bring singular values between 0.7 and 1.2.
    """
    flat = [batch.mT if batch.shape[1] > batch.shape[2] else batch for batch in batches]
    found = torch.split(newton_schulz(torch.cat(flat)), [len(batch) for batch in batches])
    return [X.mT if batch.shape[1] > batch.shape[2] else X for X, batch in zip(found, batches, strict=True)]


def newton_schulz(X_BRC: Tensor) -> Tensor:
    """About U Vᵀ of each matrix U S Vᵀ, R ≤ C. On a GPU in bf16, as torch.optim.Muon."""
    X = X_BRC / X_BRC.norm(dim=(1, 2), keepdim=True).clamp_min(TINY)
    X = X.bfloat16() if X.is_cuda else X
    R, C = X.shape[1:]
    joins = X.dtype != torch.bfloat16 and C >= 2 * R  # chosen: counted in products, C > 1.5 R is faster
    for steps in JOINED if joins else (1,) * STEPS:
        X = iterated(X, steps)
    Y: Tensor = X.to(X_BRC.dtype)
    return Y


def iterated(X_BRC: Tensor, steps: int) -> Tensor:
    """X after `steps` iterations X ← aX + PX, with P = bA + cA² and A = XXᵀ.

    The next A is (a + P) A (a + P), and n iterations are together X ← aⁿX + QX. So only the first A and the last X are
    products of wide matrices; all others are products of R x R matrices.
    """
    a, b, c = QUINTIC
    A = X_BRC @ X_BRC.mT
    P = Q = torch.baddbmm(A, A, A, beta=b, alpha=c)
    for done in range(1, steps):
        half = torch.baddbmm(A, P, A, beta=a)
        A = torch.baddbmm(half, half, P, beta=a)
        P = torch.baddbmm(A, A, A, beta=b, alpha=c)
        Q = torch.baddbmm(Q + a ** (done - 1) * P, P, Q, beta=a)
    return torch.baddbmm(X_BRC, Q, X_BRC, beta=a**steps)
