"""Checks the machines that a run would train on: deepspeed --num_accelerators 2 launch/doctor.py [--directory runs]

Looks at packages, GPUs, memory, the disk of the runs, the connection between processes, and the login of W&B, and says
what to do where something is not as a run needs it. Start it as the run will be started; plain `python` checks one
process. With `--config FILE [section.key=value …]` every process also passes a batch of the run's data forward and
backward, and the doctor says which precision is the fastest. Exit status: 0 if a run can start, 2 if something must be
mended first.
"""

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from comera_dist.commands.arguments import MISTAKE_STATUS, plain_parser, refuse
from comera_dist.commands.shipped import config_file
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config, Run, Wandb
from comera_dist.doctor.disk import disk
from comera_dist.doctor.finding import Finding, Grade
from comera_dist.doctor.machine import machine
from comera_dist.doctor.network import network
from comera_dist.doctor.software import software
from comera_dist.errors import ComeraError
from comera_dist.report.tables import show_findings
from comera_dist.report.wandb_log import chosen_mode, has_key
from comera_dist.run.precision_check import precision_check
from comera_dist.runtime.launchers import find_place
from comera_dist.runtime.processes import Processes, leave, start_processes

TIMEOUT_SECONDS = 120  # chosen: of a collective; a healthy check takes a few


def main() -> int:
    """Returns the exit status of a single process; ends the process under a launcher."""
    parser = plain_parser(__doc__)
    parser.add_argument("--directory", type=Path, help="folder of the runs (default: that of --config, or runs)")
    parser.add_argument("--config", type=config_file, help="YAML file of a run, or a shipped one by name: quickstart")
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="overrides of single keys of --config"
    )
    arguments = parser.parse_intermixed_args()
    if arguments.overrides and arguments.config is None:
        parser.error(f"{arguments.overrides[0]} was given without --config; name the configuration that it overrides")
    try:
        config = None if arguments.config is None else read_config(arguments.config, arguments.overrides)
        processes = start_processes(TIMEOUT_SECONDS, needs_group=False)
    except ComeraError as error:
        return refuse(error, find_place().index == 0)
    local = of_hosts([*software(), *machine(), *precision(config, processes)], processes)
    run, mode = (Run(), Wandb().mode) if config is None else (config.run, config.wandb.mode)
    findings = [*local, *network(processes), *disk(arguments.directory or run.directory, processes), wandb(mode)]
    if processes.is_first:
        show_findings(findings)
    is_broken = any(finding.grade is Grade.BROKEN for finding in findings)
    status = processes.from_first(MISTAKE_STATUS if is_broken else 0)
    if processes.count > 1:
        leave(processes, status)
    return status


def of_hosts(findings: list[Finding], processes: Processes) -> list[Finding]:
    """The findings of one process of each host. Collective."""
    found = dict(reversed(processes.gather((socket.gethostname(), findings))))
    if len(found) == 1:
        return findings
    return [replace(one, check=f"{host}: {one.check}") for host in sorted(found) for one in found[host]]


def precision(config: Config | None, processes: Processes) -> Iterator[Finding]:
    """The fastest precision of a configuration if one is given, or why it cannot be measured. Collective."""
    if config is None:
        return
    try:
        yield precision_check(config, processes)
    except ComeraError as error:
        yield Finding("precision", "no batch of --config could be passed", Grade.BROKEN, str(error))


def wandb(configured: str) -> Finding:
    """Whether runs with `wandb.mode = configured` will be sent to W&B."""
    match chosen_mode(configured):
        case "disabled":
            return Finding("W&B", "disabled, runs are neither sent nor recorded for it")
        case "offline":
            return Finding("W&B", "runs are recorded offline, as was chosen")
    if has_key():
        return Finding("W&B", "a key is here, runs are sent")
    return Finding("W&B", "no key, runs are recorded offline", Grade.DOUBTFUL, "wandb login, or wandb.mode=disabled")


if __name__ == "__main__":
    sys.exit(main())
