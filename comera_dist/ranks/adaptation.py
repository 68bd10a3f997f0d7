"""Rank adaptation of a run: its stages, what it decides at every sync, and what a checkpoint keeps of it.

Sizes are parameters stored in the adapted layers, gates included.
"""

import re
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from comera_dist.config.tree import Config, Ranks
from comera_dist.errors import ConfigError
from comera_dist.formats.base import Resizable
from comera_dist.formats.plan import Plan
from comera_dist.ranks.decision import GRACE, Decision, decide
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.objective import Objective
from comera_dist.ranks.resize import Resize
from comera_dist.ranks.sync import RankSync
from comera_dist.runtime.engine import Engine

TOLERANCE = 0.02  # of the target size, within which it counts as reached


class RankAdaptation:
    """Early stage, late stage, settled: alike on all processes, which prove it at every sync.

    `planned` is the plan that the run started from, with `params` stored parameters in the whole model. Raises
    ConfigError for a target that cannot be met.
    """

    def __init__(self, config: Config, planned: Plan, params: int, engine: Engine):
        self._config = config.ranks
        self._late_start = round(config.ranks.late_start * config.total_steps)
        self._late_end = round(config.ranks.late_end * config.total_steps)
        self._late_size: float | None = None  # when the late stage began
        shapes = {name: layer for name, layer in planned.items() if isinstance(layer, Resizable)}
        layout = GateLayout.of(shapes, self._config.layers)
        _check_patterns(self._config, layout)
        size = layout.size(layout.ranks_B)
        dense = sum(planned[name].dense_parameters for name in layout.adapted_layers)
        self._goal = _goal(self._config, size, dense, params)
        _check_goal(self._config, layout, self._goal)
        self.objective = Objective(self._config, size, engine.processes.device)
        self._below_G = torch.zeros(layout.num_gates, dtype=torch.int64)
        self._soft_ranks_B = layout.ranks_B.double()
        self._attach(engine)

    def start(self, state: dict | None) -> None:
        """Begins, or goes on from the `state` of a checkpoint."""
        if state is not None:
            self._late_size, self._goal = state["late_size"], state["goal"]
            below = [count for bonds in state["below"].values() for bond in bonds for count in bond]
            self._below_G = torch.tensor(below, dtype=torch.int64)
            self._soft_ranks_B = torch.tensor(state["soft_ranks"], dtype=torch.float64)
            self.objective.restore(state["objective"])
        self._press()

    def state(self) -> dict:
        """All that a checkpoint has to keep, as JSON; alike on all processes."""
        return {
            "late_size": self._late_size,
            "goal": self._goal,
            "below": {n: [b.tolist() for b in bonds] for n, bonds in self.layout.gates_by_layer(self._below_G).items()},
            "soft_ranks": self._soft_ranks_B.tolist(),
            "objective": self.objective.state(),
        }

    @property
    def stage(self) -> str:
        if self.objective.target_size is None:
            return "early"
        return "late" if self.objective.size > self.objective.target_size else "settled"

    def is_due(self, step: int) -> bool:
        return step % self._config.sync_every == 0

    def sync(self, step: int) -> tuple[dict, Resize]:
        """Gathers the gates after `step` steps, decides, and proves that all processes decide the same. Collective.

        Returns a record for ranks.jsonl and what has to change; the caller does it and calls `resized`. Raises
        RankDivergence, before a shape is changed.
        """
        # Not kept between syncs: what holds a gate would hold a whole engine beyond its time.
        sync = RankSync(self.layout, self._engine.gates, self._engine.processes, self._config.drift_tolerance)
        gathered = sync.gather()
        importance_G = gathered.gates_G.abs() * gathered.second_moment_G.sqrt()
        decision = self._decide(step, importance_G)
        sync.agree({"step": step, **self.state(), "added": decision.added_B.tolist()}, decision.cut_G)
        # Until the ranks are settled, every sync brings the adapted layers to balanced canonical form: training goes
        # better in it, and indices differ in what they hold. They are in order of that then, and what is counted of
        # an index is counted of its place in the order.
        balances = self.stage != "settled"
        resize = Resize.of(self.layout, decision, seed=step, balances=balances)
        record = self._record(step, gathered.drift, importance_G, decision)
        opened_G = self.layout.adapted_B[self.layout.bond_G] & balances
        self._gates_G = resize.gates(self.layout, gathered.gates_G.masked_fill(opened_G, 1.0), 1.0)
        self._below_G = resize.gates(self.layout, decision.below_G, -GRACE * self._config.patience)
        return record, resize

    def resized(self, engine: Engine) -> None:
        """Goes on with the engine that has what `sync` decided."""
        self._attach(engine)
        self._soft_ranks_B = self.layout.sums(self._gates_G.abs())
        self._press()

    def verdict(self) -> str | None:
        """How the run ended against its target, in a sentence; None for a run without one."""
        if self._config.target is None:
            return None
        size, goal = self.objective.size, self._goal
        if goal is None:
            return f"The late stage, and with it ranks.{self._config.target}, was not reached."
        found = f"{size:,.0f} parameters in the adapted layers, target {goal:,.0f} ({size / goal - 1:+.1%})"
        if abs(size / goal - 1) <= TOLERANCE:
            return f"Target reached: {found}."
        return f"Target missed: {found}, because {self._reason(size, goal)}."

    def _attach(self, engine: Engine) -> None:
        self._engine = engine
        self.layout = GateLayout.of(engine.resizable, self._config.layers)
        self.objective.size = self.layout.size(self.layout.ranks_B)

    def _press(self) -> None:
        self._engine.gates.press(self.objective.weights(self.layout, self._soft_ranks_B))

    def _decide(self, step: int, importance_G: Tensor) -> Decision:
        if self._config.target is not None and self._late_size is None and step >= self._late_start:
            self._late_size = self.objective.size
            self._goal = self._goal or self._config.target_fraction * self._late_size
            self.objective.target_size = self._goal
        budget = self._budget(step)
        return decide(
            self.layout,
            importance_G,
            self._below_G,
            self._config,
            budget=budget,
            floor=self._goal or 0.0,
            planned_size=self.objective.planned_size,
            is_deadline=budget is not None and budget == self._goal and self.stage == "late",
        )

    def _budget(self, step: int) -> float | None:
        """The size allowed now: None in the early stage, then a cubic descent to the target (Zhu and Gupta 2017).

        While the loss leads, the size stays what it is.
        """
        if self._late_size is None:
            return None
        if bool(self.objective.loss_leads):
            return self.objective.size
        left = max(0.0, 1 - (step - self._late_start) / max(1, self._late_end - self._late_start))
        return self._goal + (self._late_size - self._goal) * left**3

    def _reason(self, size: float, goal: float) -> str:
        if bool(self.objective.loss_leads):
            return f"the loss stayed above ranks.loss_bound = {self._config.loss_bound}"
        if size < goal:
            return "a single index holds more than the tolerance of 2%"
        return f"no further index could go at ranks.min_rank = {self._config.min_rank}, or the run ended too early"

    def _record(self, step: int, drift: float, importance_G: Tensor, decision: Decision) -> dict:
        ranks_B = self.layout.after_cut(decision.cut_G) + decision.added_B
        size = self.layout.size(ranks_B)
        return {
            "step": step,
            "stage": self.stage,
            "size": size,
            "target": self._goal,
            "cut": int(decision.cut_G.sum()),
            "added": int(decision.added_B.sum()),
            "below": int((decision.below_G > 0).sum()),
            "drift": drift,
            "ranks": self.layout.by_layer(ranks_B),
            "effective": self.layout.by_layer(self.layout.effective_ranks(importance_G)),
        }


def _goal(config: Ranks, size: float, dense: int, params: int) -> float | None:
    """The target size; None without a target, and for a fraction of a size that is not known yet."""
    if config.target_compression is not None:
        return dense / config.target_compression
    if config.target_params is not None:
        return config.target_params - (params - size)
    return None


def _check_patterns(config: Ranks, layout: GateLayout) -> None:
    names = [name for name, shape in layout.shapes.items() if shape.bonds]
    if not names:
        raise ConfigError(
            "ranks.adapt = true and no layer is a tensor train with ranks; set model.format=tensor or ranks.adapt=false"
        )
    for key in ("layers", "removable"):
        for pattern in getattr(config, key):
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigError(
                    f"ranks.{key}: the pattern {pattern!r} matches no tensor train; names look like {names[0]}"
                )
    outside = (name for name in names if not re.search(r"\.layers?\.\d+\.", name))
    kept = [name for name in outside if any(fnmatchcase(name, pattern) for pattern in config.removable)]
    if kept:
        raise ConfigError(f"ranks.removable matches {kept[0]}, which no model can do without; match block layers only")


def _check_goal(ranks: Ranks, layout: GateLayout, goal: float | None) -> None:
    if goal is None:
        return
    removable = [any(fnmatchcase(name, p) for p in ranks.removable) for name, _ in layout.bond_names]
    least_B = torch.where(torch.tensor(removable), 0, layout.ranks_B.clamp_max(ranks.min_rank))
    least, planned = layout.size(torch.where(layout.adapted_B, least_B, layout.ranks_B)), layout.size(layout.ranks_B)
    if not least <= goal < planned:
        raise ConfigError(
            f"ranks.{ranks.target} = {getattr(ranks, ranks.target)} asks for {goal:,.0f} parameters in the adapted "
            f"layers, which are planned with {planned:,.0f} and hold {least:,.0f} at "
            f"ranks.min_rank = {ranks.min_rank}; name a target between the two"
        )
