"""What rank adaptation adds to a step between two syncs: a decoder with its pressure on gates, and without.

A sync, every `ranks.sync_every` steps, is not part of a step: benchmarks/ranks.py measures it.
"""

from benchmarks.decoder_side import DecoderSide
from benchmarks.report import milliseconds, ratios, spread, times_in_turn
from benchmarks.steps.cases import CASES, OURS, Case, Side
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.runtime.processes import Processes

REPEATS = 31  # chosen: the difference is small
FIXED, ADAPTING = "ranks.adapt=false", "ranks.adapt=true"


def bookkeeping_rows(processes: Processes, case: Case = CASES["decoder"], repeats: int = REPEATS) -> list[dict]:
    def config(adapts: str):
        return case.config(Side(OURS), processes.device.type, adapts)

    sides = {adapts: DecoderSide(config(adapts), processes, case.vocabulary) for adapts in (FIXED, ADAPTING)}
    fixed, adapting = sides.values()
    ranks = RankAdaptation(adapting.config, adapting.plan, adapting.parameters, adapting.engine)
    ranks.start(None)
    calls = {
        FIXED: lambda: milliseconds(fixed.step, processes.device),
        ADAPTING: lambda: milliseconds(
            lambda: adapting.step(lambda loss: ranks.objective.pressure(loss, step=0)), processes.device
        ),
    }
    times = times_in_turn(calls, warm_up=2, repeats=repeats)
    return [
        {
            "case": f"{case.name} (median of {repeats})",
            "side": name,
            "parameters": side.parameters,
            "step ms: median (range)": spread(times[name]),
            "times as long": spread(ratios(times[ADAPTING], times[FIXED]), 3) if name == ADAPTING else "1",
        }
        for name, side in sides.items()
    ]
