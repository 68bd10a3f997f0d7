"""Shows what a run would cost, without training: python launch/estimate.py --config FILE [section.key=value …]

With --nodes, --gpus-per-node or --machine it predicts time, memory, traffic and efficiency on a cluster of GPUs, at
each ZeRO stage, for the run and its dense twin. With --fits it looks for the largest models that one GPU trains.
"""

import argparse
import json
import math
import sys

from comera_dist.commands.arguments import positive, printing, read_arguments, refuse
from comera_dist.config.tree import Config
from comera_dist.costs.budget import plan_within_budget
from comera_dist.costs.estimate import estimate
from comera_dist.costs.exchange import Cluster
from comera_dist.costs.machines import MACHINES
from comera_dist.costs.memory import estimate_memory
from comera_dist.costs.of_run import facts_of
from comera_dist.costs.oversize import oversize_line
from comera_dist.costs.step_costs import step_costs
from comera_dist.errors import ComeraError, ConfigError
from comera_dist.models.tensor_remarks import tensor_remarks
from comera_dist.report.tables import show_estimate, show_layers, show_memory, show_parts, show_plans

AT_SCALE = ("nodes", "gpus_per_node", "machine")  # options of a prediction for a cluster


@printing()
def main() -> int:
    """Returns the exit status."""
    config, arguments = read_arguments(
        __doc__,
        processes={"type": positive, "help": "number of processes (default: 2)"},
        nodes={"type": positive, "help": "predict a cluster of so many nodes (default: 1)"},
        gpus_per_node={"type": positive, "help": "GPUs of each node, one process each (default: 8)"},
        machine={"choices": tuple(MACHINES), "help": "the GPUs of the cluster (default: h100)"},
        vocab_size={"type": positive, "help": "vocabulary of a model of text (default: that of data.corpus)"},
        layers={"action": "store_true", "help": "list every weight matrix"},
        plans={"action": "store_true", "help": "show how each layer is contracted in a step, and what that costs"},
        device={"choices": ("cpu", "cuda"), "default": "cpu", "help": "device to plan paths for (default: cpu)"},
        fits={
            "type": gigabytes,
            "help": "find the widest models for one GPU of so many GB, such as 24,80,141: the run's, and dense ones",
        },
        json={"action": "store_true", "help": "print JSON instead of tables"},
    )
    try:
        if arguments.fits:
            find_largest(config, arguments)
            return 0
        if any(getattr(arguments, option) is not None for option in AT_SCALE):
            predict(config, arguments)
            return 0
        processes = arguments.processes or 2
        facts = facts_of(config, arguments.vocab_size)
        plan = plan_within_budget(config, facts, processes, arguments.device)
        tokens = config.tokens_per_forward(processes)
    except ComeraError as error:
        return refuse(error, is_first=True)
    figures = estimate(config, plan, processes, tokens, arguments.device)
    memory = estimate_memory(config, plan, figures, processes)
    if arguments.json:
        print(json.dumps(figures.to_json() | {"memory": memory and memory.to_json()}, indent=1))
        return 0
    show_estimate(config, figures, processes)
    if memory is not None:
        show_memory(memory, config.train.activation_checkpointing)
    show_parts(figures)
    if (line := oversize_line(config, plan)) is not None:
        print(line)
    _say_what_is_missing(config)
    for line in tensor_remarks(config, facts):
        print(line)
    if arguments.layers:
        show_layers(plan)
    if arguments.plans:
        show_plans(step_costs(config, plan, tokens, arguments.device), tokens, config.unit, arguments.device)
    return 0


def gigabytes(words: str) -> list[float]:
    """Sizes that are separated by commas, as argparse reads them."""
    sizes = [float(word) for word in words.split(",")]
    if not all(0 < size < math.inf for size in sizes):
        raise ValueError(words)
    return sizes


def find_largest(config: Config, arguments: argparse.Namespace) -> None:
    """Prints the largest models that fit. Raises ConfigError and DataError."""
    from comera_dist.costs.largest import largest_models
    from comera_dist.report.scale_tables import show_largest

    refuse_besides(
        "--fits, which looks for models of one process", arguments, *AT_SCALE, "processes", "layers", "plans"
    )
    found = largest_models(config, arguments.vocab_size, arguments.fits)
    if arguments.json:
        rows = [{"gigabytes": size} | model.to_json() for size, models in found.items() for model in models]
        print(json.dumps(rows, indent=1))
    else:
        show_largest(config, found)
        _say_what_is_missing(config)


def refuse_besides(option: str, arguments: argparse.Namespace, *others: str) -> None:
    """Raises ConfigError if any of the others was given with an option."""
    given = [f"--{name.replace('_', '-')}" for name in others if getattr(arguments, name)]
    if given:
        raise ConfigError(f"{', '.join(given)} was given with {option}; leave out either")


def predict(config: Config, arguments: argparse.Namespace) -> None:
    """Prints the prediction for a cluster. Raises ConfigError and DataError."""
    from comera_dist.costs.scale import plan_scale
    from comera_dist.report.scale_tables import show_scale

    cluster_options = "--nodes, --gpus-per-node or --machine, which predict a cluster"
    refuse_besides(cluster_options, arguments, "processes", "layers", "plans")
    machine = MACHINES[arguments.machine or "h100"]
    cluster = Cluster(machine, arguments.nodes or 1, arguments.gpus_per_node or 8)
    plan = plan_scale(config, arguments.vocab_size, cluster)
    if arguments.json:
        print(json.dumps(plan.to_json(), indent=1))
    else:
        show_scale(config, plan)
        _say_what_is_missing(config)
        _say_what_takes_other_times(config)


def _say_what_is_missing(config: Config) -> None:
    if config.train.teacher.run is not None:
        print("Without the weights and the forward pass of the teacher.")
    if config.run.start_from is not None:
        print(
            f"Of the configured formats and ranks: the run takes those of run.start_from = {config.run.start_from}, "
            f"which was not read."
        )
    if config.ranks.adapt:
        print("Of the ranks as they are planned, before any is cut.")


def _say_what_takes_other_times(config: Config) -> None:
    """On keys whose effect a prediction of times does not know; operations are counted as a CPU makes them."""
    if config.train.precision == "fp8":
        print("FP8 products are predicted as a device without them emulates them, in bf16; others take less time.")
    faster = [f"train.{key}" for key in ("cuda_graphs", "compile") if getattr(config.train, key)]
    if faster:
        print(f"Times are those of eager steps, without {' and '.join(faster)}.")


if __name__ == "__main__":
    sys.exit(main())
