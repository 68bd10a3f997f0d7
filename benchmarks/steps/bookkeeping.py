"""What rank adaptation adds to a step that adapts nothing: the quickstart with its pressure on gates, and without."""

import torch

from benchmarks.report import milliseconds, spread, times_in_turn
from benchmarks.steps.cases import CASES, OURS, Case, Side
from benchmarks.steps.models import batch_of
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.processes import Processes

REPEATS = 31  # the difference is small
FIXED, ADAPTING = "ranks.adapt=false", "ranks.adapt=true"


class _Stepping:
    """A sync, every `ranks.sync_every` steps, is not part of a step: see benchmarks/ranks.py."""

    def __init__(self, case: Case, adapts: str, processes: Processes):
        config = case.config(Side(OURS), processes.device.type, adapts)
        plan = plan_decoder(config, case.vocabulary)
        model = Decoder(config.model, plan, torch.Generator().manual_seed(1))
        self.parameters = sum(p.numel() for p in model.parameters())
        self.engine = Engine(model, config, processes)
        self.batch, self.pressure = batch_of(case, config.global_batch), None
        if config.ranks.adapt:
            ranks = RankAdaptation(config, plan, self.parameters, self.engine)
            ranks.start(None)
            self.pressure = lambda loss: ranks.objective.pressure(loss, step=0)

    def milliseconds(self) -> float:
        return milliseconds(
            lambda: self.engine.step([self.batch], lr=1e-3, pressure=self.pressure), self.engine.processes.device
        )


def bookkeeping_rows(processes: Processes, case: Case = CASES["quickstart"], repeats: int = REPEATS) -> list[dict]:
    sides = {adapts: _Stepping(case, adapts, processes) for adapts in (FIXED, ADAPTING)}
    times = times_in_turn({name: side.milliseconds for name, side in sides.items()}, warm_up=2, repeats=repeats)
    ratios = [adapting / fixed for adapting, fixed in zip(times[ADAPTING], times[FIXED], strict=True)]
    return [
        {
            "case": f"{case.name} (median of {repeats})",
            "side": name,
            "parameters": side.parameters,
            "step ms: median (range)": spread(times[name]),
            "times as long": spread(ratios, 3) if name == ADAPTING else "1",
        }
        for name, side in sides.items()
    ]
