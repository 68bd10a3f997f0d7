"""What a run minimises besides its loss: loss + pressure · Ŝ(g), in an early and a late stage.

Early: L + γ · Ŝ/S₀, S₀ the planned size. Late: achievement scalarisation (CoMERA, Yang et al. 2024, after Wierzbicki
1980), max(L − L₀, γ · (S/S* − 1)) + ρ · (L + γ · Ŝ/S*) with the user's size S* and, where given, bound L₀ of the loss.
Each branch is divided by its factor of L, so that the loss has one scale in Adam's moments and only the pressure on
gates changes: γ(1 + ρ)/ρ while size is what misses its goal most, γρ/(1 + ρ) while the loss is; without a bound it
never is.
"""

import torch
from torch import Tensor

from comera_dist.config.tree import Ranks
from comera_dist.ranks.layout import GateLayout

# Of the running mean of the loss that is compared with the bound: about 1 / (1 - 0.98) = 50 steps, half of the usual
# `ranks.sync_every`. Chosen, not tuned.
LOSS_MEMORY = 0.98


class Objective:
    """The pressure of each step; lives on the device, asks it nothing, and is alike on all processes.

    `target_size` is None in the early stage. `applied` sums the pressures so far: processes compare it at every sync.
    """

    def __init__(self, config: Ranks, planned_size: float, device: torch.device):
        self._config = config
        self.planned_size = planned_size
        self.target_size: float | None = None
        self.size = planned_size
        self._mean_loss = torch.full((), torch.nan, dtype=torch.float64, device=device)
        self._applied = torch.zeros((), dtype=torch.float64, device=device)

    def pressure(self, loss: Tensor, step: int) -> Tensor:
        """Weight of Ŝ/S for the step (from 0) whose loss over all processes is `loss` (nats a token)."""
        self._mean_loss = torch.where(self._mean_loss.isnan(), loss, self._mean_loss.lerp(loss, 1 - LOSS_MEMORY))
        pressure = self._early(step) if self.target_size is None else self._late()
        self._applied = self._applied + pressure
        return pressure

    def _early(self, step: int) -> Tensor:
        warmup = min(1.0, (step + 1) / (self._config.warmup_steps + 1))
        return torch.full_like(self._applied, self._config.pressure * warmup)

    def _late(self) -> Tensor:
        if self.size <= self.target_size:
            return torch.zeros_like(self._applied)
        gamma, ratio = self._config.pressure, self._config.rho / (1 + self._config.rho)
        low, high = (torch.full_like(self._applied, gamma * factor) for factor in (ratio, 1 / ratio))
        return torch.where(self.loss_leads, low, high)

    @property
    def loss_leads(self) -> Tensor:
        """Whether the loss misses its bound by more than the size misses its target: a boolean on the device."""
        bound = torch.inf if self._config.loss_bound is None else self._config.loss_bound
        size_excess = self.size / (self.target_size or self.size) - 1
        return self._mean_loss - bound > self._config.pressure * size_excess

    def weights(self, layout: GateLayout, soft_ranks_B: Tensor) -> Tensor:
        """What the pressure multiplies: ∂(Ŝ/S)/∂|g| (G,), S the planned size or the late stage's target."""
        return layout.index_cost(soft_ranks_B)[layout.bond_G] / (self.target_size or self.planned_size)

    def state(self) -> dict:
        return {
            "target_size": self.target_size,
            "mean_loss": float(self._mean_loss),
            "applied": float(self._applied),
        }

    def restore(self, state: dict) -> None:
        self.target_size = state["target_size"]
        self._mean_loss.fill_(state["mean_loss"])
        self._applied.fill_(state["applied"])
