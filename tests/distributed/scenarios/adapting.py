"""Runs whose ranks adapt: with a fault, with a death inside a cut, and rebuilds in a row."""

import gc
import os
import sys
import weakref
from pathlib import Path

import torch
from torch import nn

from comera_dist.errors import ComeraError
from comera_dist.ranks import rebuild as rebuilding
from comera_dist.ranks.policy import Decision
from comera_dist.ranks.rebuild import HeldState, rebuild
from comera_dist.ranks.resize import Resize
from comera_dist.ranks.sync import RankSync
from comera_dist.run.session import Session
from comera_dist.runtime.engine import Engine
from scenarios.runs import digest_of, open_run, train_and_act, train_runs

# Where one process dies: when a function is called, or when it returns.
POINTS = {
    "after export": ("return", HeldState.__init__),
    "between engines": ("return", Engine.close),
    "before the moments": ("call", Engine.restore_moments),
    "after the moments": ("return", Engine.restore_moments),
    "after the decision": ("return", RankSync.agree),
}


def disturbed_gate(processes) -> float:
    """The gate drift that a deliberately changed gate on the last process causes."""
    gates = torch.ones(5)
    if processes.index == processes.count - 1:
        gates[3] += 0.25
    return processes.spread(gates)


def adapt_with_faults(processes, runs: list[dict]) -> list[str]:
    """Trains one run after another; returns the error that ended each. All processes are stopped by the same ones."""
    return [adapt_with_fault(processes, **run) for run in runs]


def adapt_with_fault(processes, overrides: list[str], fault: str, process: int, step: int) -> str:
    """Trains with rank adaptation and disturbs one process after `step` steps; returns the error that ends the run."""

    def disturb(session: Session) -> None:
        if session.step == step and processes.index == process:
            if fault == "gate":
                change_gate(session.model.engine, "model.layers.0.mlp.up_proj", bond=2, index=1, by=0.25)
            else:
                change_mean_loss(session.model.ranks.objective, by=0.5)

    try:
        train_and_act(processes, overrides, disturb)
        return "no error"
    except ComeraError as error:
        return f"{type(error).__name__}: {error}"


def change_mean_loss(objective, by: float) -> None:
    state = objective.state()
    objective.restore(state | {"mean_loss": state["mean_loss"] + by})


def change_gate(engine, layer: str, bond: int, index: int, by: float) -> None:
    """Changes what the next forward of this process reads."""
    gate = engine.model.get_submodule(layer).gates[bond - 1]
    gate.data[index] += by


def adapt_and_die(processes, overrides: list[str], point: str, process: int) -> None:
    """Trains with rank adaptation until `process` dies at the named point of its first resize."""
    event, function = POINTS[point]
    resizes = point == "after the decision"

    def watch(frame, happens: str, _) -> None:
        nonlocal resizes
        resizes = resizes or frame.f_code is rebuild.__code__
        if resizes and happens == event and frame.f_code is function.__code__:
            os._exit(9)

    if processes.index == process:
        sys.setprofile(watch)  # python calls it at every call and return
    train_runs(processes, [overrides])


def resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def shrink_each_repeatedly(processes, runs: list[dict]) -> list[dict]:
    return [shrink_repeatedly(processes, **run) for run in runs]


def shrink_repeatedly(processes, overrides: list[str], times: int, at_once: int) -> dict:
    """Trains a step, closes the gates of a few indices, cuts them, and so on; returns what was measured at each cut.

    Processes exchange `at_once` numbers at a time.
    """
    rebuilding.AT_ONCE = at_once
    session = open_run(processes, overrides)
    keys = ("masked", "cut", "balanced", "alive", "hooks", "digests", "params", "resident_mebibytes", "gate_updates")
    report = {key: [] for key in keys}

    def loss() -> float:
        return session.model.engine.measure(iter([session.feed.batches.step(0)[0]]))["loss"]

    def resize_by(decision, balances: bool) -> None:
        resize = Resize(layout, decision, seed=0, balances=balances)
        engine = session.model.engine
        old = [weakref.ref(thing) for thing in (engine.model, engine._engine, engine._optimizer)]
        del engine
        session.model.rebuild(resize)
        session.model.ranks.attach(session.model.engine)
        gc.collect()
        report["alive"].append(sum(ref() is not None for ref in old))

    for turn in range(times):
        opened_G = session.model.engine.gates.copy()
        session.train_step(False)
        is_open_G = opened_G == 1  # and adapted, once the first turn has moved all others
        updates_G = (session.model.engine.gates.copy() - opened_G)[is_open_G].abs() / session.unlogged.lr
        report["gate_updates"].append(updates_G.median().item())
        layout = session.model.ranks.layout
        gates_G = session.model.engine.gates.copy()
        # The last index of the widest bond, and of every fourth bond that can spare one.
        cut_G = torch.zeros(layout.num_gates, dtype=torch.bool)
        last_B = layout.ranks_B.cumsum(0) - 1
        bonds = [b for b in range(turn % 4, len(last_B), 4) if layout.ranks_B[b] > 1] + [int(layout.ranks_B.argmax())]
        cut_G[last_B[bonds]] = True
        session.model.engine.gates.write(gates_G.masked_fill(cut_G, 0.0))
        report["masked"].append(loss())
        nothing = torch.zeros_like(layout.ranks_B)
        resize_by(Decision(cut_G, nothing), balances=False)
        report["cut"].append(loss())
        layout = session.model.ranks.layout
        none = torch.zeros(layout.num_gates, dtype=torch.int64)
        resize_by(Decision(none.bool(), torch.zeros_like(layout.ranks_B)), balances=True)
        report["balanced"].append(loss())
        report["resident_mebibytes"].append(resident_mebibytes())
        report["hooks"].append(count_hooks(session.model.engine.model))
        report["digests"].append(digest_of(session.model.engine))
        report["params"].append(session.model.estimate.params)
    session.close()
    return report
