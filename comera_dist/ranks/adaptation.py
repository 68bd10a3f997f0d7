"""Rank adaptation of a run: its stages, its syncs, and its state in a checkpoint.

A size counts the parameters stored in the adapted layers, gates included.
"""

from typing import Any, Protocol

from torch import Tensor

from comera_dist.config.tree import Config
from comera_dist.formats.base import Resizable
from comera_dist.formats.plan import Plan
from comera_dist.optim.build import roles
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.limits import check_patterns, may_go, within
from comera_dist.ranks.objective import Objective, Target
from comera_dist.ranks.policy import Decision, RankPolicy, Situation, importance
from comera_dist.ranks.resize import Resize
from comera_dist.ranks.sync import Gates, RankSync
from comera_dist.runtime.processes import Processes


class Adapted(Protocol):
    """The holder of the gates: an engine, or the scheduler of a loop of the caller's."""

    processes: Processes

    @property
    def gates(self) -> Gates:
        """All gates as flat vectors."""

    @property
    def resizable(self) -> dict[str, Resizable]:
        """Plans of the layers with gates by name, in the order in which `gates` holds their gates."""

    @property
    def gate_step(self) -> int:
        """Steps of the optimizer since the gates' moments were set to 0, or of the whole run."""


class RankAdaptation:
    """The stages of a run (early, late, settled) and the decision at every sync, the same on all processes.

    `planned` is the plan that the run started from, with `params` stored parameters in the whole model. Raises
    ConfigError for layers that are impossible.
    """

    def __init__(self, config: Config, planned: Plan, params: int, engine: Adapted):
        self._config, self._roles = config.ranks, roles(config.optim)
        shapes = {name: layer for name, layer in planned.items() if isinstance(layer, Resizable)}
        layout = GateLayout.of(shapes, self._config.layers)
        check_patterns(layout, self._config)
        self._target, self._params = Target(config, layout, params), params
        self.objective = Objective(self._config, layout.size(layout.ranks_B), engine.processes.device)
        self.attach(engine)

    def start(self, state: dict[str, Any] | None) -> None:
        """Begins, or continues from the `state` of a checkpoint. Raises ConfigError for a target that is impossible.

        A run that has begun goes on with its target, which a resume may not change.
        """
        self.attach(self.engine)
        if state is None:
            self._target.check(self.layout, self._params)
        self._policy: RankPolicy = self._config.policy.begin(self.layout, state and state["policy"])
        self._soft_ranks_B = self.layout.ranks_B.double()
        if state is not None:
            self._target.late_size, self._target.size = state["late_size"], state["goal"]
            self._soft_ranks_B = self._soft_ranks_B.new_tensor(state["soft_ranks"])
            self.objective.restore(state["objective"])
        self._press()

    def state(self) -> dict[str, Any]:
        """JSON for a checkpoint; the same on all processes."""
        return {
            "late_size": self._target.late_size,
            "goal": self._target.size,
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
        """Whether a sync is due after `step` steps.

        It is not while the gates' moments are 0, as after skipped steps alone: every index would look unimportant.
        """
        return step % self._config.sync_every == 0 and self.engine.gate_step > 0

    def sync(self, step: int) -> tuple[dict[str, Any], Resize]:
        """Gathers the gates after `step` steps, decides, and proves that all processes decide the same. Collective.

        Returns a record for ranks.jsonl and the resize, which the caller must carry out before it calls `resized`.
        Raises RankDivergence, before a shape is changed.
        """
        # Made anew at every sync, because a reference to a single gate would keep a closed engine in memory.
        sync = RankSync(self.layout, self.engine.gates, self.engine.processes, self._config.drift_tolerance)
        gates_G, second_moment_G, drift = sync.gather()
        situation = self._situation(step, gates_G, second_moment_G)
        # Until the ranks are settled, every sync brings the adapted layers to balanced canonical form: they train
        # better in it, and their indices differ in importance. Balancing sorts the indices by importance, so the
        # counters of a policy then belong to places in that order.
        balances = self.stage != "settled"
        decision = within(self.layout, situation.may_go_G, balances, self._policy.decide(situation))
        sync.agree({"step": step, **self.state(), "added": decision.added_B.tolist()}, decision.cut_G)
        resize = Resize(self.layout, decision, step, balances, self._roles)
        record = self._record(step, drift, situation.importance_G, decision)
        opened_G = self.layout.adapted_B[self.layout.bond_G] & balances
        self._gates_G = resize.gates(gates_G.masked_fill(opened_G, 1.0), 1.0)
        self._policy.resized(resize.gates)
        return record, resize

    def resized(self, engine: Adapted) -> None:
        """Continues with the engine in which the last sync's resize was carried out."""
        self.attach(engine)
        self._soft_ranks_B = self.layout.sums(self._gates_G.abs())
        self._press()

    def verdict(self) -> str | None:
        """One sentence on how the run met its target; None for a run without one."""
        return self._target.verdict(self.objective)

    def attach(self, engine: Adapted) -> None:
        """Takes layout and size from `engine`."""
        self.engine = engine
        self.layout = GateLayout.of(engine.resizable, self._config.layers)
        self.objective.size = self.layout.size(self.layout.ranks_B)

    def _press(self) -> None:
        self.engine.gates.press(self.objective.weights(self.layout, self._soft_ranks_B))

    def _situation(self, step: int, gates_G: Tensor, second_moment_G: Tensor) -> Situation:
        """Begins the late stage if it is due."""
        target, objective = self._target, self.objective
        target.begin_late(step, objective.size)
        if target.late_size is not None:
            objective.target_size = target.size
        budget = target.budget(step, objective)
        importance_G = importance(gates_G, second_moment_G)
        return Situation(
            self.layout,
            step,
            gates_G,
            second_moment_G,
            importance_G,
            may_go(self.layout, importance_G, self._config),
            budget=budget,
            floor=target.size or 0.0,
            planned_size=objective.planned_size,
            is_deadline=budget is not None and budget == target.size and self.stage == "late",
        )

    def _record(self, step: int, drift: float, importance_G: Tensor, decision: Decision) -> dict[str, Any]:
        ranks_B = self.layout.after_cut(decision.cut_G) + decision.added_B
        return {
            "step": step,
            "stage": self.stage,
            "size": self.layout.size(ranks_B),
            "target": self._target.size,
            "cut": int(decision.cut_G.sum()),
            "added": int(decision.added_B.sum()),
            **decision.figures,
            "drift": drift,
            "ranks": self.layout.by_layer(ranks_B),
            "effective": self.layout.by_layer(self.layout.effective_ranks(importance_G)),
        }
