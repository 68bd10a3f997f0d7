"""What the processes of a distributed test do; every function is called on all of them alike."""

import hashlib
import os
import shutil
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import added_optimizer
import torch
from support import ROOT
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.data.batches import TrainBatches, ValidationBatches
from comera_dist.data.windows import TextBatch
from comera_dist.errors import DataError, TrainingError
from comera_dist.ops import cross_entropy
from comera_dist.run.session import Session
from comera_dist.run.train import train
from comera_dist.runtime import engine as engine_module
from comera_dist.runtime import graphs
from comera_dist.runtime.endings import Watchdog
from comera_dist.runtime.measuring import measure
from comera_dist.storage.run_directory import RunDirectory


def train_runs(processes, runs: list[list[str]]) -> list[int]:
    """Trains one run after another in the same processes; returns their exit statuses."""
    return [train(read_config(None, overrides), processes) for overrides in runs]


def train_with_own_policy(processes, runs: list[list[str]]) -> list[int]:
    """As train_runs, with a rank policy that is not part of the package."""
    from keep_largest import KeepLargest

    from comera_dist.config.registry import POLICIES

    POLICIES.add("keep_largest", KeepLargest)
    return train_runs(processes, runs)


class Dropped(nn.Module):
    """A model with dropout before it learns anything: its loss depends on the state of the random numbers."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.dropout = model, nn.Dropout(0.3)
        model.model.norm.register_forward_hook(lambda module, inputs, output: self.dropout(output))

    def forward(self, inputs_BS, targets_BS):
        return self.model(inputs_BS, targets_BS)

    def measure(self, inputs_BS, targets_BS):
        return self.model.measure(inputs_BS, targets_BS)


@contextmanager
def dropout_in_the_model():
    plain = engine_module.AutocastModel
    engine_module.AutocastModel = lambda model, precision: plain(Dropped(model), precision)
    try:
        yield
    finally:
        engine_module.AutocastModel = plain


def train_with_dropout(processes, runs: list[list[str]]) -> list[int]:
    """As train_runs, with dropout in the model."""
    with dropout_in_the_model():
        return train_runs(processes, runs)


def several(processes, calls: list[tuple[str, dict]]) -> list:
    """Calls one scenario after another; returns what each returned."""
    return [globals()[scenario](processes, **arguments) for scenario, arguments in calls]


@contextmanager
def static_steps(captures: bool = True, backend: str = "inductor"):
    """Where train.cuda_graphs is set, the functions that a GPU captures make the step, also on CPUs.

    Without `captures` a GPU runs them as they are too. `backend` is that of train.compile. Arithmetic is the same in
    all steps: deterministic, and without Liger, which cannot be captured.
    """
    plain = {name: getattr(graphs, name) for name in ("obstacle", "compile_model", "_capture")}
    plain_liger, was_deterministic = cross_entropy._liger_is_installed, torch.are_deterministic_algorithms_enabled()
    graphs.obstacle = lambda config, device: plain["obstacle"](config, torch.device("cuda"))
    graphs.compile_model = partial(graphs.compile_model, backend=backend)
    if not captures:
        graphs._capture = lambda function, pool: function
    cross_entropy._liger_is_installed = lambda: False
    torch.use_deterministic_algorithms(torch.cuda.is_available(), warn_only=True)
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(graphs, name, function)
        cross_entropy._liger_is_installed = plain_liger
        torch.use_deterministic_algorithms(was_deterministic)


def train_static(processes, runs: list[list[str]], captures: bool = True) -> list[int]:
    """As train_runs, in `static_steps`."""
    with static_steps(captures):
        return train_runs(processes, runs)


def make_steps(
    processes,
    overrides: list[str],
    steps: int = 3,
    captures: bool = True,
    dropout: bool = False,
    backend: str = "aot_eager",
) -> dict:
    """Losses, gradient norms, a digest of weights and moments, and the number of graphs of steps in `static_steps`."""
    config = read_config(None, overrides)
    with static_steps(captures, backend), dropout_in_the_model() if dropout else nullcontext():
        session = Session(config, processes, RunDirectory(config.run_directory))
        results = [session.train_step(False) for _ in range(steps)]
        digest, count = digest_of(session.engine), count_graphs(session.engine)
        session.close()
    losses, norms = [result.loss for result in results], [result.grad_norm for result in results]
    return {"losses": losses, "norms": norms, "digest": digest, "graphs": count}


def count_graphs(engine) -> int:
    """CUDA graphs that the engine replays."""
    replays = [getattr(engine._steps, name, None) for name in ("_replay", "_replay_update")]
    return sum(isinstance(getattr(replay, "__self__", None), torch.cuda.CUDAGraph) for replay in replays)


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
    config = read_config(None, overrides)
    session = Session(config, processes, RunDirectory(config.run_directory))
    session.train_step(False)
    engine, figures, stage = session.engine, session.figures, config.train.zero_stage
    kept = [part.method.tensors(engine._optimizer.state[p]).values() for part, p in engine._state.stepped()]
    # Weights, gradients and from stage 1 on masters.
    besides = {0: 2, 1: 2 + 1 / processes.count, 3: 3 / processes.count}[stage] * figures.params
    sliced = [part for part in engine._state.parts if not part.method.needs_whole]
    found = {
        "kept": sum(tensor.numel() for tensors in kept for tensor in tensors),
        "estimated": figures.state_bytes_per_process / 4 - besides,
        "padding": 2 * sum(part.master.numel() - sum(piece.size for piece in part.mine.values()) for part in sliced),
        "digest": digest_of(engine),
    }
    session.close()
    return found


def said(processes, runs: list[list[str]], pretends_gpu: bool) -> list[str]:
    """What train_runs or train_static say about settings of `train` without effect."""
    with listening(processes) as lines:
        (train_static if pretends_gpu else train_runs)(processes, runs)
    return [line for line in lines if line.startswith("train.")]


@contextmanager
def listening(processes):
    """Notes what is said once for all processes, in place of saying it."""
    lines, plain = [], type(processes).say
    type(processes).say = lambda self, text: lines.append(text)
    try:
        yield lines
    finally:
        type(processes).say = plain


def train_and_listen(processes, runs: list[list[str]]) -> list[list[str]]:
    """As train_or_say; what each run says, its status or error last."""
    heard = []
    for overrides in runs:
        with listening(processes) as lines:
            status = train_or_say(processes, [overrides])
        heard.append([*lines, *map(str, status)])
    return heard


def disturb_static_steps(processes, overrides: list[str]) -> dict:
    with static_steps():
        return _disturb_static_steps(processes, overrides)


def _disturb_static_steps(processes, overrides: list[str]) -> dict:
    """Makes steps with what can go wrong in between; says what came of it, beside a run in which nothing does."""
    config = read_config(None, overrides)
    sessions = [Session(config, processes, RunDirectory(config.run_directory)) for _ in range(2)]
    (engine, calm), batches = [session.engine for session in sessions], sessions[0]._batches.step(0)
    gate = next(p for name, p in engine._model.named_parameters() if "gate_" in name)
    report = {"errors": [], "kept_nodes": 0}

    def step(of=engine, given=batches):
        return of.step(given, lr=0.01)

    def attempt(given=batches):
        try:
            step(given=given)
            report["errors"].append("no error")
        except TrainingError as error:
            report["errors"].append(str(error))

    def are_equal(first, second):
        return all(torch.equal(a[kind], second[name][kind]) for name, a in first.items() for kind in a)

    step()
    before, value = engine.state(), gate.detach().clone()
    gate.data.fill_(torch.nan)
    report["bad"] = [str(number) for number in (step().loss, step().grad_norm)]
    gate.data.copy_(value)
    report["untouched"] = are_equal(before, engine.state())
    inputs_BS, targets_BS = batches[0]
    attempt([TextBatch(inputs_BS[:, 1:], targets_BS)])
    attempt([TextBatch(inputs_BS, targets_BS.int())])
    step()
    [step(of=calm) for _ in range(2)]
    report["goes_on"] = are_equal(calm.state(), engine.state())
    engine.overwrite(iter(engine.state().items()))
    report["kept_nodes"] = sum(map(keeps_its_node, engine._model.parameters()))
    gate.data = gate.data.clone()
    attempt()
    step(of=calm)
    report["goes_on_where_it_moved"] = are_equal(calm.state(), engine.state())
    gate.data = gate.data[1:].clone()
    attempt()
    return report


def keeps_its_node(parameter: nn.Parameter) -> bool:
    """Whether something holds the node that accumulates the gradient; it belongs to the stream of its first use."""

    def node():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]

    node().metadata["seen"] = True
    return "seen" in node().metadata


def stop_at(processes, overrides: list[str], step: int, process: int) -> int:
    """Trains and sends SIGTERM to one process when it has made `step` steps."""
    from comera_dist.run.session import Session

    plain = Session.train_step

    def train_step(session, stop_requested):
        result = plain(session, stop_requested)
        if session.step == step and processes.index == process:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    Session.train_step = train_step
    try:
        return train(read_config(None, overrides), processes)
    finally:
        Session.train_step = plain


def disturbed_gate(processes) -> float:
    """The gate drift that a deliberately changed gate on the last process causes."""
    import torch

    gates = torch.ones(5)
    if processes.index == processes.count - 1:
        gates[3] += 0.25
    return processes.spread(gates)


def adapt_with_faults(processes, runs: list[dict]) -> list[str]:
    """Trains one run after another; returns the error that ended each. All processes are stopped by the same ones."""
    return [adapt_with_fault(processes, **run) for run in runs]


def adapt_with_fault(processes, overrides: list[str], fault: str, process: int, step: int) -> str:
    """Trains with rank adaptation and disturbs one process after `step` steps; returns the error that ends the run."""
    from comera_dist.errors import ComeraError
    from comera_dist.ranks.objective import Objective
    from comera_dist.run.session import Session

    plain_step, plain_pressure = Session.train_step, Objective.pressure

    def train_step(session, stop_requested):
        result = plain_step(session, stop_requested)
        if fault == "gate" and session.step == step and processes.index == process:
            change_gate(session.engine, "model.layers.1.mlp.up_proj", bond=2, index=1, by=0.25)
        return result

    def pressure(objective, loss, at_step):
        disturbed = fault == "loss" and at_step + 1 == step and processes.index == process
        return plain_pressure(objective, loss + 0.5 if disturbed else loss, at_step)

    Session.train_step, Objective.pressure = train_step, pressure
    try:
        train(read_config(None, overrides), processes)
        return "no error"
    except ComeraError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        Session.train_step, Objective.pressure = plain_step, plain_pressure


def change_gate(engine, layer: str, bond: int, index: int, by: float) -> None:
    """Changes what the next forward of this process reads."""
    gate = engine._model.get_submodule(layer).gates[bond - 1]
    gate.data[index] += by


def adapt_and_die(processes, overrides: list[str], point: str, process: int) -> None:
    """Trains with rank adaptation until `process` dies at the named point of its first resize."""
    from comera_dist.ranks import shrink
    from comera_dist.ranks.sync import RankSync
    from comera_dist.runtime.engine import Engine

    def dying(owner, name, after: bool):
        plain = getattr(owner, name)

        def call(*args, **kwargs):
            if shrinking and processes.index == process and not after:
                os._exit(9)
            result = plain(*args, **kwargs)
            if shrinking and processes.index == process:
                os._exit(9)
            return result

        setattr(owner, name, call)

    shrinking = []
    plain_rebuild = shrink.rebuild

    def rebuild(*args):
        shrinking.append(True)
        return plain_rebuild(*args)

    from comera_dist.run import session

    session.rebuild = rebuild
    points = {
        "after export": (shrink._Held, "__init__", True),
        "between engines": (Engine, "close", True),
        "before the moments": (Engine, "restore_moments", False),
        "after the moments": (Engine, "restore_moments", True),
        "after the decision": (RankSync, "agree", True),
    }
    if point == "after the decision":
        shrinking.append(True)
    dying(*points[point])
    train(read_config(None, overrides), processes)


def resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def shrink_each_repeatedly(processes, runs: list[dict]) -> list[dict]:
    return [shrink_repeatedly(processes, **run) for run in runs]


def shrink_repeatedly(processes, overrides: list[str], times: int) -> dict:
    """Trains a step, closes the gates of a few indices, cuts them, and so on; returns what was measured at each cut."""
    import gc
    import weakref

    from comera_dist.ranks.decision import Decision
    from comera_dist.ranks.resize import Resize
    from comera_dist.ranks.shrink import rebuild
    from comera_dist.run.session import Session
    from comera_dist.storage.run_directory import RunDirectory

    config = read_config(None, overrides)
    session = Session(config, processes, RunDirectory(config.run_directory))
    keys = ("masked", "cut", "balanced", "alive", "hooks", "digests", "params", "resident_mebibytes", "gate_updates")
    report = {key: [] for key in keys}

    def loss() -> float:
        return session.engine.measure(iter([session._batches.step(0)[0]]))["loss"]

    def resize_by(decision, balances: bool) -> None:
        resize = Resize.of(layout, decision, seed=0, balances=balances)
        session._use_plan(resize.plan(session.plan))
        old = [
            weakref.ref(thing) for thing in (session.engine._model, session.engine._engine, session.engine._optimizer)
        ]
        session.engine = rebuild(session.engine, config, session.plan, resize)
        session.ranks._attach(session.engine)
        gc.collect()
        report["alive"].append(sum(ref() is not None for ref in old))

    for turn in range(times):
        opened_G = session.engine.gates.copy()
        session.train_step(False)
        is_open_G = opened_G == 1  # and adapted, once the first turn has moved all others
        updates_G = (session.engine.gates.copy() - opened_G)[is_open_G].abs() / session._lr
        report["gate_updates"].append(updates_G.median().item())
        layout = session.ranks.layout
        gates_G = session.engine.gates.copy()
        # The last index of the widest bond, and of every fourth bond that can spare one.
        cut_G = torch.zeros(layout.num_gates, dtype=torch.bool)
        last_B = layout.ranks_B.cumsum(0) - 1
        bonds = [b for b in range(turn % 4, len(last_B), 4) if layout.ranks_B[b] > 1] + [int(layout.ranks_B.argmax())]
        cut_G[last_B[bonds]] = True
        session.engine.gates.write(gates_G.masked_fill(cut_G, 0.0))
        report["masked"].append(loss())
        nothing = torch.zeros_like(layout.ranks_B)
        resize_by(Decision(cut_G, nothing), balances=False)
        report["cut"].append(loss())
        layout = session.ranks.layout
        none = torch.zeros(layout.num_gates, dtype=torch.int64)
        resize_by(Decision(none.bool(), torch.zeros_like(layout.ranks_B)), balances=True)
        report["balanced"].append(loss())
        report["resident_mebibytes"].append(resident_mebibytes())
        report["hooks"].append(count_hooks(session.engine._model))
        report["digests"].append(digest_of(session.engine))
        report["params"].append(session.figures.params)
    session.close()
    return report


def evaluate_runs(processes, calls: list[dict]) -> list:
    """Figures of launch/evaluate.py's function for each call, or the error that ended it."""
    from comera_dist.errors import ComeraError
    from comera_dist.run.evaluate import evaluate_run

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
    from comera_dist.errors import ComeraError

    results = []
    for overrides in runs:
        try:
            results += train_runs(processes, [overrides])
        except ComeraError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


def parted_weights(processes, process: int) -> list[str]:
    """What is said of weights that are alike on all processes, and of a last bit that `process` has changed."""
    from comera_dist.errors import ComeraError
    from comera_dist.runtime.agreement import check_alike

    weights, said = {name: torch.full((3, 5), 0.1) for name in "abc"}, []
    for parts in (False, True):
        if parts and processes.index == process:
            weights["b"].view(torch.int32)[2, 4] += 1
        try:
            check_alike(weights, processes)
            said.append("alike")
        except ComeraError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def save_with_faults(processes, runs: list[dict]) -> list[str]:
    return [save_with_fault(processes, **run) for run in runs]


def save_with_fault(processes, overrides: list[str], fault: str, process: int) -> str:
    """Saves after a step; then disturbs one process and saves after another; returns the error that ends that.

    `weight` changes the last bit of one number that the process's next forward reads, `adapting gate` that of a gate,
    and for `disk` the disk is full for its shard.
    """
    import errno

    from comera_dist.checkpoints import write as saving
    from comera_dist.errors import ComeraError

    config, plain = read_config(None, overrides), saving.save_file
    session = Session(config, processes, RunDirectory(config.run_directory))

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    session.train_step(False)
    session.save()
    session.train_step(False)
    if processes.index == process and fault == "weight":
        weight = session.engine._model.model.norm.weight.data
        weight.view(torch.int32)[3] += 1
    if processes.index == process and fault == "adapting gate":
        change_gate(session.engine, "model.layers.1.mlp.up_proj", bond=2, index=1, by=1e-6)
    if processes.index == process and fault == "disk":
        saving.save_file = full
    try:
        session.save()
        return "no error"
    except ComeraError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        saving.save_file = plain
        session.close()


def train_with_unreadable_rows(processes, runs: list[list[str]], process: int) -> list[list[str]]:
    """What each run says where `process` cannot read rows: from the third step on, then in the validation."""
    return [[_unreadable(processes, run, process, owner, name) for owner, name in _READERS] for run in runs]


_READERS = ((TrainBatches, "step"), (ValidationBatches, "__iter__"))


def _unreadable(processes, overrides: list[str], process: int, owner, name: str) -> str:
    plain = getattr(owner, name)

    def read(batches, *rows_done):
        fails = processes.index == process and rows_done > (16,)
        if fails and owner is TrainBatches:
            raise DataError(f"process {process} cannot read rows {rows_done[0]}")
        return plain(batches, *rows_done) if owner is TrainBatches else some(plain(batches))

    def some(batches):
        yield next(batches)
        if processes.index == process:
            raise DataError(f"process {process} cannot read on")
        yield from batches

    setattr(owner, name, read)
    try:
        train(read_config(None, overrides), processes)
        return "no error"
    except DataError as error:
        return str(error)
    finally:
        setattr(owner, name, plain)


def pretrain(processes, overrides: list[str], fault: str | None = None, process: int = 0, step: int = 2) -> None:
    """launch/pretrain.py, disturbed by `fault` on `process` when it has made `step` steps; ends the process."""
    from comera_dist.commands import pretrain

    if fault is not None and processes.index == process:
        _after_step(step, FAULTS[fault])
    sys.argv = ["pretrain.py", "--config", str(ROOT / "tests/defaults.yaml"), *overrides]
    pretrain.main()


def _after_step(step: int, fault) -> None:
    plain = Session.train_step

    def train_step(session, stop_requested):
        result = plain(session, stop_requested)
        if session.step == step:
            fault(session)
        return result

    Session.train_step = train_step


def _raise(error: Exception) -> None:
    raise error


FAULTS = {
    "hang": lambda session: time.sleep(60),
    "death": lambda session: os._exit(9),
    "own error": lambda session: _raise(DataError("a shard of this process only is damaged; copy it again")),
    "removal": lambda session: shutil.rmtree(session.directory.path),
    "disk full": lambda session: (session.directory.path / "checkpoints").write_text("in the way"),
    "bad weights": lambda session: setattr(session.task, "figures", lambda *_: {"loss": float("nan")}),
    "console": lambda session: os.close(1),
}


def measure_slowly(processes, seconds_a_batch: float, timeout_seconds: float) -> float:
    """Measures five batches under a watchdog."""

    def figures_of(inputs_BS, targets_BS):
        time.sleep(seconds_a_batch)
        return {"loss": torch.tensor(1.0)}

    batch = TextBatch(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))
    with Watchdog(timeout_seconds):
        return measure(figures_of, [batch] * 5, processes)["loss"]
