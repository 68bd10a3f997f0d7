"""A campaign: a run is attacked and started again until it is finished, and then compared with one in peace."""

import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch
from forked import Ended, Started, start_processes
from soak.attacks import Attack, may_end_with
from soak.launched import Launched
from support import metrics, saved_tensors

# Seconds in which all processes of a start must end after an attack; chosen: a run that survives it makes all its
# steps, on a busy machine.
PATIENCE = 180.0
TIMEOUT = 10  # seconds, train.timeout_seconds under attack; chosen: a busy machine may take half of it to start
OWN_TRACEBACK = re.compile(r"Traceback(?:.*\n)(?:\s.*\n)*?.*comera_dist/")  # one that leads through our code
# Figures of a step that depend on the machine.
TIMES = ("tokens_per_second", "step_ms", "flops_per_second", "data_wait_fraction", "peak_memory_bytes")


@dataclass(frozen=True)
class Subject:
    """A run that can be attacked: its overrides without place and name, and the number of its processes.

    Tests start these processes themselves, which takes a second, or by a launcher.
    """

    name: str
    processes: int
    overrides: tuple[str, ...]
    has_launcher: bool = False

    @property
    def targets(self) -> tuple[str, ...]:
        """The possible targets of an attack."""
        if self.has_launcher:
            return ("one", "all", "launcher")
        return ("one", "all") if self.processes > 1 else ("all",)

    def run(self, directory: Path, name: str) -> list[str]:
        return [*self.overrides, f"run.directory={directory}", f"run.name={name}"]


@dataclass
class Report:
    """What happened in a campaign: its attacks, the starts that it took, and everything that was wrong."""

    subject: str
    attacks: list[Attack] = field(default_factory=list)
    starts: int = 0
    faults: list[str] = field(default_factory=list)


def in_peace(subject: Subject, directory: Path) -> Path:
    """The run without attacks; its folder."""
    ended = _start(subject, subject.run(directory, "peace"), None)
    assert all(one.status == 0 for one in ended), ended
    return directory / "peace"


def attacked(subject: Subject, directory: Path, name: str, attacks: Iterable[Attack]) -> Report:
    """Starts the run `name` under one attack after the other until it is finished, and compares it with `peace`."""
    report, run = Report(subject.name), subject.run(directory, name)
    for attack in chain(attacks, [None]):
        if (directory / name / "summary.json").exists():
            break
        report.faults += _wrong(subject, attack, _start(subject, run, attack))
        report.starts += 1
        report.attacks += [attack] if attack else []
    report.faults += differences(directory / "peace", directory / name)
    return report


def _start(subject: Subject, run: list[str], attack: Attack | None) -> list[Ended]:
    """One start of the run, under `attack`; how its processes ended."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks"
        marks.touch()
        run = run if attack is None else [*run, f"train.timeout_seconds={TIMEOUT}"]
        # The last start, in peace, need not wait for a launcher.
        started = _processes(subject if attack else replace(subject, has_launcher=False), run, marks)
        if attack is not None and _wait_for(attack, marks, started):
            _strike(attack, started)
        return started.ended(PATIENCE if attack else 600)


def _processes(subject: Subject, run: list[str], marks: Path) -> Started | Launched:
    if subject.has_launcher:
        return Launched(subject.processes, run, marks)
    return start_processes(subject.processes, "pretrain_marked", {"overrides": run, "marks": str(marks)})


def _wait_for(attack: Attack, marks: Path, started: Started | Launched) -> bool:
    """Waits until the attack is due. False if the run ends before."""
    while marks.read_text().split().count(attack.moment) < attack.occurrence:
        if not started.are_alive:
            return False
        time.sleep(0.001)
    time.sleep(attack.delay)
    return started.are_alive


def _strike(attack: Attack, started: Started | Launched) -> None:
    """Sends the signal. A process that is stopped goes on after the others have had time to notice."""
    struck = [pid for index, pid in enumerate(started.pids) if attack.strikes(index)]
    if attack.target != "one":
        struck += started.launcher_pids
    for pid in struck:
        _send(pid, attack.signal)
    if attack.signal == signal.SIGSTOP:
        time.sleep(1.5 * TIMEOUT if attack.target == "one" else 2.0)
        for pid in struck:
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wrong(subject: Subject, attack: Attack | None, ended: list[Ended]) -> list[str]:
    """Sentences about processes that ended as they must not."""
    found = []
    for index, one in enumerate(ended):
        output = one.out + one.err
        if one.status is None:
            found.append(f"process {index} did not end within {PATIENCE} s after {attack}: {output[-500:]}")
        elif attack is None and one.status != 0:
            found.append(f"process {index} ended with {one.status}: {output[-500:]}")
        # A launcher has exit statuses and tracebacks of its own.
        elif attack is not None and not subject.has_launcher and not may_end_with(attack, index, one.status):
            found.append(f"process {index} ended with {one.status} after {attack}: {output[-500:]}")
        if OWN_TRACEBACK.search(output):
            found.append(f"process {index} has a traceback after {attack}: {output[-2000:]}")
    return found


def differences(peace: Path, war: Path) -> list[str]:
    """Sentences about figures, ranks, weights and moments of two runs that are not the same."""
    found = []
    if _figures(peace) != _figures(war):
        found.append(f"the figures of {war} are not those of {peace}")
    if _decisions(peace) != _decisions(war):
        found.append(f"the ranks of {war} are not those of {peace}")
    leftovers = [path.name for path in (war / "checkpoints").glob(".tmp-*")]
    if leftovers:
        found.append(f"{war} has leftovers {leftovers}")
    step = metrics(peace.parent, peace.name)[-1]["step"]
    mine, theirs = (saved_tensors(run.parent, run.name, step) for run in (peace, war))
    if mine.keys() != theirs.keys():
        found.append(f"{war} holds other tensors than {peace}")
    else:
        found += [f"{name} differs in {war}" for name, tensor in mine.items() if not torch.equal(tensor, theirs[name])]
    return found


def _figures(run: Path) -> list[dict]:
    return [{k: v for k, v in record.items() if k not in TIMES} for record in metrics(run.parent, run.name)]


def _decisions(run: Path) -> list[dict]:
    file = run / "ranks.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{k: v for k, v in record.items() if not k.endswith("seconds")} for record in records]
