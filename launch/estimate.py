"""Says what a run would cost, without training: python launch/estimate.py --config FILE [section.key=value …]"""

import json
import sys

from comera_dist.console import show_estimate, show_layers, show_plans
from comera_dist.data.shards import Corpus
from comera_dist.errors import ComeraError
from comera_dist.estimate import estimate
from comera_dist.models.plan import plan_decoder
from comera_dist.step_costs import step_costs
from launch.arguments import read_arguments, refuse


def main() -> int:
    config, arguments = read_arguments(
        __doc__,
        processes={"type": int, "default": 2, "help": "number of processes (default: 2)"},
        vocab_size={"type": int, "help": "vocabulary size (default: that of data.corpus)"},
        layers={"action": "store_true", "help": "list every weight matrix"},
        plans={"action": "store_true", "help": "show how each layer is contracted in a step, and what that costs"},
        device={"choices": ("cpu", "cuda"), "default": "cpu", "help": "for which --plans plans (default: cpu)"},
        json={"action": "store_true", "help": "print JSON instead of tables"},
    )
    try:
        vocab_size = arguments.vocab_size or Corpus.open(config.data.corpus).vocab_size
        plan = plan_decoder(config, vocab_size)
        tokens_per_forward = config.micro_batch(arguments.processes) * config.data.seq_len
    except ComeraError as error:
        return refuse(error, is_first=True)
    figures = estimate(config, plan, arguments.processes, tokens_per_forward)
    if arguments.json:
        print(json.dumps(figures.to_json(), indent=1))
        return 0
    show_estimate(config, figures, arguments.processes)
    if arguments.layers:
        show_layers(plan)
    if arguments.plans:
        show_plans(step_costs(config, plan, tokens_per_forward, arguments.device), tokens_per_forward, arguments.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
