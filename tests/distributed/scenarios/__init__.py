"""What the processes of a distributed test do; every function is called on all of them alike, by its name."""

from typing import Any

import own_parts

from scenarios import adapting, commands, gradients, judging, reading, runs, saving, steps

ROOMS = (adapting, commands, gradients, judging, own_parts, reading, runs, saving, steps)


def call(processes, scenario: str, arguments: dict) -> Any:
    """What the scenario of that name returns."""
    if scenario == "several":
        return [call(processes, *one) for one in arguments["calls"]]
    return next(getattr(room, scenario) for room in ROOMS if hasattr(room, scenario))(processes, **arguments)
