"""Shows what a run would cost, without training: python launch/estimate.py --config FILE [section.key=value …]"""

import json
import sys

from comera_dist.commands.arguments import positive, read_arguments, refuse
from comera_dist.costs.estimate import estimate
from comera_dist.costs.memory import estimate_memory
from comera_dist.costs.of_run import plan_run
from comera_dist.costs.oversize import oversize_line
from comera_dist.costs.step_costs import step_costs
from comera_dist.errors import ComeraError
from comera_dist.report.tables import show_estimate, show_layers, show_memory, show_parts, show_plans


def main() -> int:
    """Returns the exit status."""
    config, arguments = read_arguments(
        __doc__,
        processes={"type": positive, "default": 2, "help": "number of processes (default: 2)"},
        vocab_size={"type": positive, "help": "vocabulary of a model of text (default: that of data.corpus)"},
        layers={"action": "store_true", "help": "list every weight matrix"},
        plans={"action": "store_true", "help": "show how each layer is contracted in a step, and what that costs"},
        device={"choices": ("cpu", "cuda"), "default": "cpu", "help": "device to plan paths for (default: cpu)"},
        json={"action": "store_true", "help": "print JSON instead of tables"},
    )
    try:
        plan = plan_run(config, arguments.vocab_size, arguments.processes, arguments.device)
        tokens = config.tokens_per_forward(arguments.processes)
    except ComeraError as error:
        return refuse(error, is_first=True)
    figures = estimate(config, plan, arguments.processes, tokens, arguments.device)
    memory = estimate_memory(config, plan, figures, arguments.processes)
    if arguments.json:
        print(json.dumps(figures.to_json() | {"memory": memory and memory.to_json()}, indent=1))
        return 0
    show_estimate(config, figures, arguments.processes)
    if memory is not None:
        show_memory(memory, config.train.activation_checkpointing)
    show_parts(figures)
    if (line := oversize_line(config, plan)) is not None:
        print(line)
    if arguments.layers:
        show_layers(plan)
    if arguments.plans:
        show_plans(step_costs(config, plan, tokens, arguments.device), tokens, config.unit, arguments.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
