"""One process of a distributed test: worker.py SCENARIO JSON-ARGUMENTS; prints the result as its last line."""

import json
import sys

from comera_dist.commands.imports import kept_imports


def work(scenario: str, arguments: dict) -> None:
    """Runs a scenario and ends the process."""
    with kept_imports():
        from comera_dist.runtime.processes import leave, start_processes

        processes = start_processes(timeout_seconds=120)
        import scenarios
    print(json.dumps(scenarios.call(processes, scenario, arguments)), flush=True)
    leave(processes, 0)


if __name__ == "__main__":
    work(sys.argv[1], json.loads(sys.argv[2]))
