"""The objective of a run with rank adaptation, loss + pressure · Ŝ(g), and the target size that it must reach.

A size counts the parameters stored in the adapted layers, gates included.

Early: L + γ · Ŝ/S₀ with the planned size S₀. Late: achievement scalarisation (CoMERA, Yang et al. 2024, after
Wierzbicki 1980), max(L − L₀, γ · (S/S* − 1)) + ρ · (L + γ · Ŝ/S*), with the target size S* and an optional bound L₀ of
the loss.

Dividing each branch of the maximum by its coefficient of L keeps the loss at one scale in Adam's moments. What remains
is a pressure on the gates: γ(1 + ρ)/ρ if the size misses its target by more than the loss misses its bound, otherwise
γρ/(1 + ρ). Without a bound the first case always holds.
"""

import math
from typing import Any

import torch
from torch import Tensor

from comera_dist.config.ranks_section import Ranks
from comera_dist.config.tree import Config
from comera_dist.errors import ConfigError
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.limits import least_ranks

# Decay of the running mean of the loss that is compared with the bound: it averages over about 1 / (1 - 0.98) = 50
# steps, half of the default `ranks.sync_every`. Chosen, not tuned.
LOSS_MEMORY = 0.98
# Relative distance from the target size within which it counts as reached. Chosen, not tuned: the worst of 40 random
# cases with the shapes of the quickstart ended 0.02% below its target, and one index of a large layer can hold 2%.
TOLERANCE = 0.02


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


class Target:
    """The target `size` and the descent to it.

    `size` is None without a target, and for `ranks.target_fraction` until the late stage begins. `late_size` is the
    size at the start of the late stage, None before it.
    """

    def __init__(self, config: Config, layout: GateLayout, params: int):
        """`layout` is that of the planned model, which stores `params` parameters."""
        self._ranks = config.ranks
        self._late_start = round(config.ranks.late_start * config.total_steps)
        self._late_end = round(config.ranks.late_end * config.total_steps)
        self.late_size: float | None = None
        self.size = _target_size(config.ranks, layout, params)

    def check(self, layout: GateLayout, params: int) -> None:
        """ConfigError for a target that no ranks within the limits meet, at the start of a run with `layout`."""
        largest = self.size
        if self._ranks.target_fraction is not None:  # of a size that is at most the planned one
            largest = self._ranks.target_fraction * layout.size(layout.ranks_B)
        if largest is not None:
            _check(largest, self._ranks, layout, params)

    def begin_late(self, step: int, size: float) -> None:
        """Begins the late stage at the model's present `size`, if it is due after `step` steps."""
        if self._ranks.target is not None and self.late_size is None and step >= self._late_start:
            self.late_size = size
            if self._ranks.target_fraction is not None:
                self.size = self._ranks.target_fraction * size

    def budget(self, step: int, objective: Objective) -> float | None:
        """The size allowed now: None in the early stage, then a cubic descent to the target (Zhu and Gupta 2017).

        The size stays as it is while the loss is further from its bound than the size from its target.
        """
        if self.late_size is None or self.size is None:
            return None
        if bool(objective.loss_leads):
            return objective.size
        left = max(0.0, 1 - (step - self._late_start) / max(1, self._late_end - self._late_start))
        return self.size + (self.late_size - self.size) * left**3

    def verdict(self, objective: Objective) -> str | None:
        """One sentence on how the run met its target; None for a run without one."""
        if self._ranks.target is None:
            return None
        if self.size is None:
            return f"The late stage, and with it ranks.{self._ranks.target}, was not reached."
        excess = objective.size / self.size - 1
        found = f"{objective.size:,.0f} parameters in the adapted layers, target {self.size:,.0f} ({excess:+.1%})"
        if abs(excess) <= TOLERANCE:
            return f"Target reached: {found}."
        return f"Target missed: {found}, because {self._reason(objective, excess)}."

    def _reason(self, objective: Objective, excess: float) -> str:
        policy = f"ranks.policy = {self._ranks.policy.kind}"
        if excess < 0:
            return f"the indices that {policy} cut last hold more than the tolerance of {TOLERANCE:.0%}"
        if bool(objective.loss_leads):
            return f"the loss stayed above ranks.loss_bound = {self._ranks.loss_bound}"
        return f"{policy} cut no further index at ranks.min_rank = {self._ranks.min_rank}, or the run ended too early"


def _target_size(ranks: Ranks, layout: GateLayout, params: int) -> float | None:
    if ranks.target_compression is not None:
        return sum(layout.shapes[name].dense_parameters for name in layout.adapted_layers) / ranks.target_compression
    if ranks.target_params is not None:
        return ranks.target_params - (params - layout.size(layout.ranks_B))
    return None


def _check(target_size: float, ranks: Ranks, layout: GateLayout, params: int) -> None:
    """ConfigError for a target size that no ranks within the limits meet; it names the limits in the target's unit."""
    least_B = torch.where(layout.adapted_B, layout.ranks_B.minimum(least_ranks(layout, ranks)), layout.ranks_B)
    least, planned = layout.size(least_B), layout.size(layout.ranks_B)
    if not least <= target_size < planned:
        if least < planned:
            remedy = f"name {_limits(ranks, layout, params, least)}"
        else:  # such as block trains of rank 1: no value of the key is possible
            remedy = f"none of their ranks can be cut, so plan larger ranks, or remove ranks.{ranks.target}"
        raise ConfigError(
            f"ranks.{ranks.target} = {getattr(ranks, str(ranks.target))} asks for {target_size:,.0f} parameters in the "
            f"adapted layers, which are planned with {planned:,.0f} and hold {least:,.0f} at ranks.min_rank = "
            f"{ranks.min_rank}; {remedy}"
        )


def _limits(ranks: Ranks, layout: GateLayout, params: int, least: float) -> str:
    """The values that the target may have: adapted layers of their `least` size, up to less than the planned one."""
    planned = layout.size(layout.ranks_B)
    if ranks.target_params is not None:
        return f"{math.ceil(params - planned + least)} or more, and less than {params}"
    if ranks.target_fraction is not None:
        return f"{math.ceil(1e4 * least / planned) / 1e4:g} or more"
    dense = sum(layout.shapes[name].dense_parameters for name in layout.adapted_layers)
    most = f", and at most {math.floor(100 * dense / least) / 100:.2f}" if least else ""  # 0 if all layers may go
    return f"more than {math.ceil(100 * dense / planned) / 100:.2f}{most}"
