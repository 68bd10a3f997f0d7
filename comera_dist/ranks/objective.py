"""The objective of a run with rank adaptation, loss + pressure · Ŝ(g), in an early and a late stage.

Early: L + γ · Ŝ/S₀ with the planned size S₀. Late: achievement scalarisation (CoMERA, Yang et al. 2024, after
Wierzbicki 1980), max(L − L₀, γ · (S/S* − 1)) + ρ · (L + γ · Ŝ/S*), with the target size S* and an optional bound L₀ of
the loss.

Dividing each branch of the maximum by its coefficient of L keeps the loss at one scale in Adam's moments. What remains
is a pressure on the gates: γ(1 + ρ)/ρ if the size misses its target by more than the loss misses its bound, otherwise
γρ/(1 + ρ). Without a bound the first case always holds.
"""

from typing import Any

import torch
from torch import Tensor

from comera_dist.config.tree import Ranks
from comera_dist.ranks.layout import GateLayout

# Decay of the running mean of the loss that is compared with the bound: it averages over about 1 / (1 - 0.98) = 50
# steps, half of the default `ranks.sync_every`. Chosen, not tuned.
LOSS_MEMORY = 0.98


class Objective:
    """The pressure of each step, as a tensor on `device`; no number is read back from the device before a sync.

    `size` is the size now, `target_size` the target in the late stage and None in the early one.
    """

    def __init__(self, config: Ranks, planned_size: float, device: torch.device):
        self._config = config
        self.planned_size = self.size = planned_size
        self.target_size: float | None = None
        self._mean_loss = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._applied = torch.zeros((), dtype=torch.float64, device=device)

    def pressure(self, loss: Tensor, step: int) -> Tensor:
        """Weight of Ŝ/S (0-dimensional) at `step` (from 0), whose loss on all processes is `loss` in nats a token."""
        self._mean_loss = torch.where(self._mean_loss.isnan(), loss, self._mean_loss.lerp(loss, 1 - LOSS_MEMORY))
        pressure = self._early(step) if self.target_size is None else self._late(self.target_size)
        self._applied = self._applied + pressure
        return pressure

    def _early(self, step: int) -> Tensor:
        warmup = min(1.0, (step + 1) / (self._config.warmup_steps + 1))
        return torch.full_like(self._applied, self._config.pressure * warmup)

    def _late(self, target_size: float) -> Tensor:
        if self.size <= target_size:
            return torch.zeros_like(self._applied)
        ratio = self._config.rho / (1 + self._config.rho)
        low, high = (torch.full_like(self._applied, self._config.pressure * f) for f in (ratio, 1 / ratio))
        return torch.where(self.loss_leads, low, high)

    @property
    def loss_leads(self) -> Tensor:
        """Whether the loss misses its bound by more than the size misses its target: a boolean on the device."""
        bound = torch.inf if self._config.loss_bound is None else self._config.loss_bound
        size_excess = self.size / (self.target_size or self.size) - 1
        return self._mean_loss - bound > self._config.pressure * size_excess

    def weights(self, layout: GateLayout, soft_ranks_B: Tensor) -> Tensor:
        """The factor of the pressure for each |g|: ∂(Ŝ/S)/∂|g| (G,), S the target size, in the early stage S₀."""
        return layout.index_cost(soft_ranks_B)[layout.bond_G] / (self.target_size or self.planned_size)

    def state(self) -> dict[str, Any]:
        """JSON for a checkpoint; `applied` is the sum of all pressures, which processes compare at every sync."""
        return {
            "target_size": self.target_size,
            "mean_loss": float(self._mean_loss),
            "applied": float(self._applied),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.target_size = state["target_size"]
        self._mean_loss.fill_(state["mean_loss"])
        self._applied.fill_(state["applied"])
