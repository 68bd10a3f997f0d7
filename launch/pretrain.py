"""Pretrains a language model: deepspeed launch/pretrain.py --config FILE [section.key=value …]

Also runs under torchrun, under plain `python` (one process), and resumes by itself from the run's newest checkpoint.
Exit status: 0 finished, 2 a mistake of the user, 75 stopped or hung with its checkpoint intact (start it again).
"""

import sys

from comera_dist.errors import ComeraError
from launch.arguments import read_arguments, refuse


def main() -> int:
    config = read_arguments(__doc__)
    # Heavy imports come after the configuration is known to be good.
    from comera_dist.runtime.processes import leave, start_processes

    processes = start_processes(config.train.timeout_seconds)
    from comera_dist.runtime.memory import lack_of_memory_named
    from comera_dist.train import train

    try:
        with lack_of_memory_named():
            status = train(config, processes)
    except ComeraError as error:
        return refuse(error, processes.is_first)
    leave(processes, status)


if __name__ == "__main__":
    sys.exit(main())
