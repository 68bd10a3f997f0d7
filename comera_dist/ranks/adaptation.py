"""Rank adaptation of a run: its stages, its syncs, and what a checkpoint keeps of it.

Sizes are parameters stored in the adapted layers, gates included.
"""

from functools import partial
from typing import Any, Protocol

from torch import Tensor

from comera_dist.config.tree import Config
from comera_dist.formats.base import Resizable
from comera_dist.formats.plan import Plan
from comera_dist.optim.build import roles
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.limits import check_patterns, may_go, within
from comera_dist.ranks.objective import Objective
from comera_dist.ranks.policy import Decision, RankPolicy, Situation, importance
from comera_dist.ranks.resize import Resize
from comera_dist.ranks.sync import Gates, Gathered, RankSync
from comera_dist.ranks.target import check_goal, goal_of, verdict
from comera_dist.runtime.processes import Processes


class Adapted(Protocol):
    """What adapts: an engine, or a model in a loop of the caller's."""

    processes: Processes

    @property
    def gates(self) -> Gates:
        """All gates, read, written and pressed as flat vectors."""

    @property
    def resizable(self) -> dict[str, Resizable]:
        """Plans of the layers with gates by name, in the order in which `gates` holds their gates."""


class RankAdaptation:
    """Early stage, late stage, settled: alike on all processes, which prove it at every sync.

    `planned` is the plan that the run started from, with `params` stored parameters in the whole model. Raises
    ConfigError for a target that cannot be met.
    """

    def __init__(self, config: Config, planned: Plan, params: int, engine: Adapted):
        self._config, self._roles = config.ranks, roles(config.optim)
        self._late_start = round(config.ranks.late_start * config.total_steps)
        self._late_end = round(config.ranks.late_end * config.total_steps)
        self._late_size: float | None = None  # when the late stage began
        shapes = {name: layer for name, layer in planned.items() if isinstance(layer, Resizable)}
        layout = GateLayout.of(shapes, self._config.layers)
        check_patterns(self._config, layout)
        size = layout.size(layout.ranks_B)
        dense = sum(planned[name].dense_parameters for name in layout.adapted_layers)
        self._goal = goal_of(self._config, size, dense, params)
        check_goal(self._config, layout, self._goal)
        self.objective = Objective(self._config, size, engine.processes.device)
        self._attach(engine)

    def start(self, state: dict[str, Any] | None) -> None:
        """Begins, or goes on from the `state` of a checkpoint."""
        self._attach(self._engine)
        policy_state = state and state["policy"]
        self._policy: RankPolicy = self._config.policy.begin(self.layout, policy_state)
        self._soft_ranks_B = self.layout.ranks_B.double()
        if state is not None:
            self._late_size, self._goal = state["late_size"], state["goal"]
            self._soft_ranks_B = self._soft_ranks_B.new_tensor(state["soft_ranks"])
            self.objective.restore(state["objective"])
        self._press()

    def state(self) -> dict[str, Any]:
        """All that a checkpoint has to keep, as JSON; alike on all processes."""
        return {
            "late_size": self._late_size,
            "goal": self._goal,
            "policy": self._policy.state(self.layout),
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
        situation = self._situation(step, gathered)
        # Until the ranks are settled, every sync brings the adapted layers to balanced canonical form: training goes
        # better in it, and indices differ in what they hold. They are in order of that then, and what is counted of
        # an index is counted of its place in the order.
        balances = self.stage != "settled"
        decision = within(self.layout, situation.may_go_G, balances, self._policy.decide(situation))
        sync.agree({"step": step, **self.state(), "added": decision.added_B.tolist()}, decision.cut_G)
        resize = Resize.of(self.layout, decision, step, balances, self._roles)
        record = self._record(step, gathered.drift, situation.importance_G, decision)
        opened_G = self.layout.adapted_B[self.layout.bond_G] & balances
        self._gates_G = resize.gates(self.layout, gathered.gates_G.masked_fill(opened_G, 1.0), 1.0)
        self._policy.resized(partial(resize.gates, self.layout))
        return record, resize

    def resized(self, engine: Adapted) -> None:
        """Goes on with the engine that has what `sync` decided."""
        self._attach(engine)
        self._soft_ranks_B = self.layout.sums(self._gates_G.abs())
        self._press()

    def verdict(self) -> str | None:
        """How the run ended against its target, in a sentence; None for a run without one."""
        return verdict(self._config, self._goal, self.objective)

    def _attach(self, engine: Adapted) -> None:
        self._engine = engine
        self.layout = GateLayout.of(engine.resizable, self._config.layers)
        self.objective.size = self.layout.size(self.layout.ranks_B)

    def _press(self) -> None:
        self._engine.gates.press(self.objective.weights(self.layout, self._soft_ranks_B))

    def _situation(self, step: int, gathered: Gathered) -> Situation:
        """Begins the late stage where it is due."""
        if self._config.target is not None and self._late_size is None and step >= self._late_start:
            self._late_size = self.objective.size
            self._goal = self._goal or self._config.target_fraction * self._late_size
            self.objective.target_size = self._goal
        budget = self._budget(step)
        importance_G = importance(gathered.gates_G, gathered.second_moment_G)
        return Situation(
            self.layout,
            step,
            gathered.gates_G,
            gathered.second_moment_G,
            importance_G,
            may_go(self.layout, importance_G, self._config),
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
            **decision.figures,
            "drift": drift,
            "ranks": self.layout.by_layer(ranks_B),
            "effective": self.layout.by_layer(self.layout.effective_ranks(importance_G)),
        }
