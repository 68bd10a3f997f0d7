"""Runs, one after another in the same processes, and what they say."""

import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import added_optimizer
import psutil
import torch
from keep_largest import KeepLargest
from listening import Listening
from torch.nn import functional

from comera_dist.config.reader import read_config
from comera_dist.config.registry import POLICIES
from comera_dist.config.tree import Config
from comera_dist.data.batches import ValidationBatches
from comera_dist.data.windows import TextBatch
from comera_dist.errors import ComeraError
from comera_dist.models.family import build_model
from comera_dist.report.records import RunStarted
from comera_dist.run import held_out
from comera_dist.run.evaluate import evaluate_run
from comera_dist.run.loop import carry_out, run_or_resume
from comera_dist.run.opening import open_session
from comera_dist.run.session import Session
from comera_dist.run.train import CONFIGURED, ModelFactory, Parts
from comera_dist.runtime.endings import Watchdog
from comera_dist.runtime.forward import measure
from comera_dist.storage.run_directory import RunDirectory


def train_runs(processes, runs: list[list[str]], parts_of: Callable[[Config], Parts] | None = None) -> list[int]:
    """Trains one run after another in the same processes; returns their exit statuses."""
    configs = [read_config(None, overrides) for overrides in runs]
    return [run_or_resume(config, processes, parts_of(config) if parts_of else CONFIGURED) for config in configs]


def open_run(processes, overrides: list[str], parts: Parts = CONFIGURED) -> Session:
    """A session without the lock of its directory."""
    config = read_config(None, overrides)
    return open_session(config, processes, RunDirectory(config.run_directory), parts)


def train_with_own_policy(processes, runs: list[list[str]]) -> list[int]:
    """As train_runs, with a rank policy that is not part of the package."""
    POLICIES.add("keep_largest", KeepLargest)
    return train_runs(processes, runs)


class AfterSteps:
    """A session that calls `act` with the true session after each step, before anything else is done with it."""

    def __init__(self, session: Session, act: Callable[[Session], None]):
        self._session, self._act = session, act

    def __getattr__(self, name: str):
        return getattr(self._session, name)

    def train_step(self, stop_requested: bool):
        result = self._session.train_step(stop_requested)
        self._act(self._session)
        return result


def train_and_act(processes, overrides: list[str], act: Callable[[Session], None]) -> str:
    """Trains a run; `act` is called after each step on each process."""
    config = read_config(None, overrides)
    directory = RunDirectory(config.run_directory)
    with directory.held(processes):
        return carry_out(AfterSteps(open_session(config, processes, directory), act)).name


def listening_sockets(processes, overrides: list[str]) -> list[tuple[str, int]]:
    """Addresses and ports at which this process and its children listen during a step of training."""
    found = []

    def look(session: Session) -> None:
        me = psutil.Process()
        sockets = [s for process in (me, *me.children(recursive=True)) for s in process.net_connections("inet")]
        found.extend(tuple(s.laddr) for s in sockets if s.status == psutil.CONN_LISTEN)

    assert train_and_act(processes, overrides, look) == "DONE"
    return found


def with_dropout(config: Config) -> ModelFactory:
    """Builds the model with dropout before the head: its loss depends on the state of the random numbers."""

    def build(plan, generator):
        model = build_model(config.model, plan, generator)
        model.model.norm.register_forward_hook(
            lambda norm, inputs, output: functional.dropout(output, 0.3, norm.training)
        )
        return model

    return build


def train_with_dropout(processes, runs: list[list[str]]) -> list[int]:
    """As train_runs, with dropout in the model."""
    return train_runs(processes, runs, lambda config: Parts(model=with_dropout(config)))


def digest_of(engine) -> str:
    """Of all weights and moments."""
    digest = hashlib.sha256()
    for tensors in engine.state().values():
        digest.update(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors.values()))
    return digest.hexdigest()


def train_with_added_optimizer(processes, runs: list[list[str]]) -> list[int]:
    """Like train_runs, with the optimizer of added_optimizer.py."""
    with added_optimizer.added():
        return train_runs(processes, runs)


def state_numbers(processes, overrides: list[str]) -> dict:
    """Numbers that the optimizer keeps on this process after a step, those estimated, and those that pad its slices; a
    digest of the whole state."""
    session = open_run(processes, overrides)
    session.train_step(False)
    engine, figures, stage = session.model.engine, session.model.estimate, session.config.train.zero_stage
    kept = [part.method.tensors(engine._optimizer.state[p]).values() for part, p in engine._state.stepped()]
    # Weights, gradients and from stage 1 on masters.
    besides = {0: 2, 1: 2 + 1 / processes.count, 3: 3 / processes.count}[stage] * figures.params
    sliced = [part for part in engine._state.parts if not part.method.needs_whole]
    found = {
        # A view keeps all that it looks at.
        "kept": sum(tensor.untyped_storage().nbytes() // tensor.itemsize for tensors in kept for tensor in tensors),
        "estimated": figures.state_bytes_per_process / 4 - besides,
        "padding": 2 * sum(part.master.numel() - sum(piece.size for piece in part.mine.values()) for part in sliced),
        "digest": digest_of(engine),
    }
    session.close()
    return found


def train_and_listen(processes, runs: list[list[str]]) -> list[list[str]]:
    """As train_or_say; what each run says, its status or error last."""
    heard = []
    for overrides in runs:
        listening = Listening(processes)
        status = train_or_say(listening, [overrides])
        heard.append([*listening.said, *map(str, status)])
    return heard


def summaries_at_starts(processes, runs: list[list[str]]) -> list[bool]:
    """Whether each run has a summary when its steps begin."""
    found = []
    for config in (read_config(None, overrides) for overrides in runs):

        def note(record: object, summary: Path = config.run_directory / "summary.json") -> None:
            if isinstance(record, RunStarted):
                found.append(summary.exists())

        assert run_or_resume(config, processes, Parts(observers=[note])) == 0
    return found


def stop_at(processes, overrides: list[str], step: int, process: int) -> int:
    """Trains and sends SIGTERM to one process when it has made `step` steps."""

    def stop(session: Session) -> None:
        if session.step == step and processes.index == process:
            os.kill(os.getpid(), signal.SIGTERM)

    return train_and_act(processes, overrides, stop)


def evaluate_runs(processes, calls: list[dict]) -> list:
    """Figures of launch/evaluate.py's function for each call, or the error that ended it."""
    results = []
    for call in calls:
        run, corpus = Path(call["run"]), call.get("corpus") and Path(call["corpus"])
        options = call.get("step"), corpus, call.get("split", "valid"), call.get("max_tokens")
        try:
            results.append(evaluate_run(run, processes, *options))
        except ComeraError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


def train_or_say(processes, runs: list[list[str]]) -> list:
    """As train_runs; the error of a run in place of its status."""
    results = []
    for overrides in runs:
        try:
            results += train_runs(processes, [overrides])
        except ComeraError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


def measure_slowly(processes, seconds_a_batch: float, timeout_seconds: float) -> float:
    """Measures five batches under a watchdog."""

    def figures_of(inputs_BS, targets_BS):
        time.sleep(seconds_a_batch)
        return {"loss": torch.tensor(1.0)}

    batch = TextBatch(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))
    with Watchdog(timeout_seconds):
        return measure(figures_of, [batch] * 5, processes)["loss"]


def stop_in_validation(processes, overrides: list[str], stop_at: int | None) -> dict:
    """Trains a run; process 1 gets SIGTERM when it has read `stop_at` batches of the split `valid`."""
    read = []

    class Stopping(ValidationBatches):
        def __iter__(self):
            for batch in super().__iter__():
                read.append(1)
                if len(read) == stop_at and processes.index == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                yield batch

    held_out.ValidationBatches = Stopping
    (status,) = train_runs(processes, [overrides])
    return {"status": status, "read": len(read)}
