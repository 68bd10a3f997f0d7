"""What the processes of a distributed test do; every function is called on all of them alike."""

import gc
import hashlib
import os
import resource
import shutil
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import added_optimizer
import psutil
import torch
from keep_largest import KeepLargest
from listening import Listening
from own_parts import adapt_own, built_models, said_of_own_model, train_own  # noqa: F401 (called by their names)
from poisoned import MarkedRows, is_marked, poisoned_model
from soak.marks import mark_moments
from support import ROOT
from torch import nn
from torch.nn import functional

from benchmarks.saving import measured
from comera_dist.commands import pretrain as pretrain_command
from comera_dist.config.reader import read_config
from comera_dist.config.registry import POLICIES
from comera_dist.config.tree import Config
from comera_dist.data.tasks import open_task
from comera_dist.data.windows import TextBatch
from comera_dist.doctor.disk import disk
from comera_dist.doctor.network import network
from comera_dist.errors import ComeraError, DataError, TrainingError
from comera_dist.models.family import build_model
from comera_dist.ops.cross_entropy import without_waiting
from comera_dist.ranks.policy import Decision
from comera_dist.ranks.rebuild import HeldState, rebuild
from comera_dist.ranks.resize import Resize
from comera_dist.ranks.sync import RankSync
from comera_dist.run.evaluate import evaluate_run
from comera_dist.run.loop import carry_out, run_or_resume
from comera_dist.run.opening import open_session
from comera_dist.run.session import Session
from comera_dist.run.train import CONFIGURED, ModelFactory, Parts
from comera_dist.runtime.agreement import check_alike
from comera_dist.runtime.endings import Watchdog
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.forward import measure
from comera_dist.runtime.graphs import Compilation, as_it_is
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


def several(processes, calls: list[tuple[str, dict]]) -> list:
    """Calls one scenario after another; returns what each returned."""
    return [globals()[scenario](processes, **arguments) for scenario, arguments in calls]


@contextmanager
def static_steps(captures: bool = True, backend: str = "inductor") -> Iterator[Compilation]:
    """Where train.cuda_graphs is set, the functions that a GPU captures make the step, also on CPUs.

    Without `captures` a GPU runs them as they are too. `backend` is that of train.compile. Arithmetic is the same in
    all steps: deterministic, and without Liger, which cannot be captured.
    """
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(torch.cuda.is_available(), warn_only=True)
    try:
        with without_waiting():
            yield Compilation(None if captures and torch.cuda.is_available() else as_it_is, backend)
    finally:
        torch.use_deterministic_algorithms(was_deterministic)


def train_static(processes, runs: list[list[str]], captures: bool = True) -> list[int]:
    """As train_runs, in `static_steps`."""
    with static_steps(captures) as compilation:
        return train_runs(processes, runs, lambda config: Parts(compilation=compilation))


def make_steps(
    processes,
    overrides: list[str],
    steps: int = 3,
    captures: bool = True,
    dropout: bool = False,
    backend: str = "aot_eager",
) -> dict:
    """Losses, gradient norms, a digest of weights and moments, and the number of graphs of steps in `static_steps`."""
    model = with_dropout(read_config(None, overrides)) if dropout else None
    with static_steps(captures, backend) as compilation:
        session = open_run(processes, overrides, Parts(model=model, compilation=compilation))
        results = [session.train_step(False) for _ in range(steps)]
        digest, count = digest_of(session.model.engine), count_graphs(session.model.engine)
        session.close()
    losses, norms = [result.loss for result in results], [result.grad_norm for result in results]
    return {"losses": losses, "norms": norms, "digest": digest, "graphs": count}


def skip_a_step(processes, overrides: list[str], kind: str) -> list:
    """Loss, norm and state after five steps, of which the third is bad on the last process, and of four without it."""
    config, is_bad = read_config(None, overrides), [False]
    spoils = processes.index == processes.count - 1
    model = poisoned_model(config, lambda inputs: kind if spoils and is_bad[0] else None)
    found = []
    for sees_it in (True, False):
        with static_steps() as compilation:
            session = open_run(processes, overrides, Parts(model=model, compilation=compilation))
            session.watch.accepts = lambda loss: loss < 100
            for step in range(5):
                is_bad[0] = sees_it and step == 2
                if step == 2 and not sees_it:
                    session.step, session.rows = session.step + 1, session.rows + config.global_batch
                    continue
                result = session.train_step(False)
                assert result.is_applied != is_bad[0], result
            found.append([result.loss, result.grad_norm, digest_of(session.model.engine)])
            session.close()
    return found


def train_poisoned(processes, runs: list[list[str]], bad_rows: list[int], kind: str) -> list[list[str]]:
    """What runs say, their status or error last, if steps that read one of the rows `bad_rows` are bad."""
    heard = []
    for overrides in runs:
        config, listening = read_config(None, overrides), Listening(processes)
        task = Task(config, train=lambda task: lambda: MarkedRows(task.train(), bad_rows))
        model = poisoned_model(config, lambda inputs: kind if is_marked(inputs) else None)
        try:
            status = str(run_or_resume(config, listening, Parts(model=model, task=task)))
        except ComeraError as error:
            status = f"{type(error).__name__}: {error}"
        heard.append([*listening.said, status])
    return heard


def count_graphs(engine) -> int:
    """CUDA graphs that the engine replays."""
    replays = [getattr(engine._steps, name, None) for name in ("_replay", "_replay_clip", "_replay_update")]
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
    session = open_run(processes, overrides)
    session.train_step(False)
    engine, figures, stage = session.model.engine, session.model.estimate, session.config.train.zero_stage
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
    processes = Listening(processes)
    (train_static if pretends_gpu else train_runs)(processes, runs)
    return [line for line in processes.said if line.startswith("train.")]


def train_and_listen(processes, runs: list[list[str]]) -> list[list[str]]:
    """As train_or_say; what each run says, its status or error last."""
    heard = []
    for overrides in runs:
        listening = Listening(processes)
        status = train_or_say(listening, [overrides])
        heard.append([*listening.said, *map(str, status)])
    return heard


def disturb_static_steps(processes, overrides: list[str]) -> dict:
    with static_steps() as compilation:
        return _disturb_static_steps(processes, overrides, compilation)


def _disturb_static_steps(processes, overrides: list[str], compilation: Compilation) -> dict:
    """Makes steps with what can go wrong in between; says what came of it, beside a run in which nothing does."""
    sessions = [open_run(processes, overrides, Parts(compilation=compilation)) for _ in range(2)]
    (engine, calm), batches = [session.model.engine for session in sessions], sessions[0].feed.batches.step(0)
    gate = next(p for name, p in engine.model.named_parameters() if "gate_" in name)
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
    report["kept_nodes"] = sum(map(keeps_its_node, engine.model.parameters()))
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

    def stop(session: Session) -> None:
        if session.step == step and processes.index == process:
            os.kill(os.getpid(), signal.SIGTERM)

    return train_and_act(processes, overrides, stop)


def disturbed_gate(processes) -> float:
    """The gate drift that a deliberately changed gate on the last process causes."""
    gates = torch.ones(5)
    if processes.index == processes.count - 1:
        gates[3] += 0.25
    return processes.spread(gates)


def adapt_with_faults(processes, runs: list[dict]) -> list[str]:
    """Trains one run after another; returns the error that ended each. All processes are stopped by the same ones."""
    return [adapt_with_fault(processes, **run) for run in runs]


def adapt_with_fault(processes, overrides: list[str], fault: str, process: int, step: int) -> str:
    """Trains with rank adaptation and disturbs one process after `step` steps; returns the error that ends the run."""

    def disturb(session: Session) -> None:
        if session.step == step and processes.index == process:
            if fault == "gate":
                change_gate(session.model.engine, "model.layers.1.mlp.up_proj", bond=2, index=1, by=0.25)
            else:
                change_mean_loss(session.model.ranks.objective, by=0.5)

    try:
        train_and_act(processes, overrides, disturb)
        return "no error"
    except ComeraError as error:
        return f"{type(error).__name__}: {error}"


def change_mean_loss(objective, by: float) -> None:
    state = objective.state()
    objective.restore(state | {"mean_loss": state["mean_loss"] + by})


def change_gate(engine, layer: str, bond: int, index: int, by: float) -> None:
    """Changes what the next forward of this process reads."""
    gate = engine.model.get_submodule(layer).gates[bond - 1]
    gate.data[index] += by


# Where one process dies: when a function is called, or when it returns.
POINTS = {
    "after export": ("return", HeldState.__init__),
    "between engines": ("return", Engine.close),
    "before the moments": ("call", Engine.restore_moments),
    "after the moments": ("return", Engine.restore_moments),
    "after the decision": ("return", RankSync.agree),
}


def adapt_and_die(processes, overrides: list[str], point: str, process: int) -> None:
    """Trains with rank adaptation until `process` dies at the named point of its first resize."""
    event, function = POINTS[point]
    resizes = point == "after the decision"

    def watch(frame, happens: str, _) -> None:
        nonlocal resizes
        resizes = resizes or frame.f_code is rebuild.__code__
        if resizes and happens == event and frame.f_code is function.__code__:
            os._exit(9)

    if processes.index == process:
        sys.setprofile(watch)  # python calls it at every call and return
    train_runs(processes, [overrides])


def resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def count_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def shrink_each_repeatedly(processes, runs: list[dict]) -> list[dict]:
    return [shrink_repeatedly(processes, **run) for run in runs]


def shrink_repeatedly(processes, overrides: list[str], times: int) -> dict:
    """Trains a step, closes the gates of a few indices, cuts them, and so on; returns what was measured at each cut."""
    session = open_run(processes, overrides)
    keys = ("masked", "cut", "balanced", "alive", "hooks", "digests", "params", "resident_mebibytes", "gate_updates")
    report = {key: [] for key in keys}

    def loss() -> float:
        return session.model.engine.measure(iter([session.feed.batches.step(0)[0]]))["loss"]

    def resize_by(decision, balances: bool) -> None:
        resize = Resize(layout, decision, seed=0, balances=balances)
        engine = session.model.engine
        old = [weakref.ref(thing) for thing in (engine.model, engine._engine, engine._optimizer)]
        del engine
        session.model.rebuild(resize)
        session.model.ranks.attach(session.model.engine)
        gc.collect()
        report["alive"].append(sum(ref() is not None for ref in old))

    for turn in range(times):
        opened_G = session.model.engine.gates.copy()
        session.train_step(False)
        is_open_G = opened_G == 1  # and adapted, once the first turn has moved all others
        updates_G = (session.model.engine.gates.copy() - opened_G)[is_open_G].abs() / session.lr
        report["gate_updates"].append(updates_G.median().item())
        layout = session.model.ranks.layout
        gates_G = session.model.engine.gates.copy()
        # The last index of the widest bond, and of every fourth bond that can spare one.
        cut_G = torch.zeros(layout.num_gates, dtype=torch.bool)
        last_B = layout.ranks_B.cumsum(0) - 1
        bonds = [b for b in range(turn % 4, len(last_B), 4) if layout.ranks_B[b] > 1] + [int(layout.ranks_B.argmax())]
        cut_G[last_B[bonds]] = True
        session.model.engine.gates.write(gates_G.masked_fill(cut_G, 0.0))
        report["masked"].append(loss())
        nothing = torch.zeros_like(layout.ranks_B)
        resize_by(Decision(cut_G, nothing), balances=False)
        report["cut"].append(loss())
        layout = session.model.ranks.layout
        none = torch.zeros(layout.num_gates, dtype=torch.int64)
        resize_by(Decision(none.bool(), torch.zeros_like(layout.ranks_B)), balances=True)
        report["balanced"].append(loss())
        report["resident_mebibytes"].append(resident_mebibytes())
        report["hooks"].append(count_hooks(session.model.engine.model))
        report["digests"].append(digest_of(session.model.engine))
        report["params"].append(session.model.estimate.params)
    session.close()
    return report


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


def parted_weights(processes, process: int) -> list[str]:
    """What is said of weights that are alike on all processes, and of a last bit that `process` has changed."""
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
    and for `disk` files of the process end after 100 bytes.
    """
    session = open_run(processes, overrides)
    session.train_step(False)
    session.save()
    session.note_saved(is_needed=True)
    session.train_step(False)
    is_disturbed = processes.index == process
    if is_disturbed and fault == "weight":
        weight = session.model.engine.model.model.norm.weight.data
        weight.view(torch.int32)[3] += 1
    if is_disturbed and fault == "adapting gate":
        change_gate(session.model.engine, "model.layers.1.mlp.up_proj", bond=2, index=1, by=1e-6)
    try:
        with longest_file(100 if is_disturbed and fault == "disk" else resource.RLIM_INFINITY):
            session.save()
            session.note_saved(is_needed=True)
        return "no error"
    except ComeraError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        session.close()


def measure_saves(processes, overrides: list[str]) -> list[dict]:
    """The rows of benchmarks/saving.py."""
    session = open_run(processes, overrides)
    rows = measured(session, turns=1)
    session.close()
    return rows


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """While entered, a write beyond so many bytes fails, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Task:
    """The task of a configuration with some things of its own."""

    def __init__(self, config: Config, **own):
        self._task, self._own = open_task(config), own

    def __getattr__(self, name: str):
        return self._own[name](self._task) if name in self._own else getattr(self._task, name)


class Rows:
    """Rows that call `check` with the rows' draws before they are read."""

    def __init__(self, examples, check: Callable):
        self._examples, self._check = examples, check

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, row_B, draw_B):
        self._check(draw_B)
        return self._examples.batch(row_B, draw_B)


def train_with_unreadable_rows(processes, runs: list[list[str]], process: int) -> list[list[str]]:
    """What each run says where `process` cannot read rows: from the fourth step on, then in the validation."""
    is_disturbed = processes.index == process
    return [[_unreadable(processes, run, is_disturbed and split) for split in ("train", "valid")] for run in runs]


def _unreadable(processes, overrides: list[str], split: str | bool) -> str:
    config, validated = read_config(None, overrides), []

    def check_train(draw_B) -> None:
        step, _ = divmod(int(draw_B[0]), config.global_batch)
        if split == "train" and step >= 3:
            raise DataError(f"process {processes.index} cannot read the rows of step {step + 1}")

    def check_valid(draw_B) -> None:
        validated.append(draw_B)
        if split == "valid" and len(validated) > 1:
            raise DataError(f"process {processes.index} cannot read on")

    task = Task(
        config,
        train=lambda task: lambda: Rows(task.train(), check_train),
        held_out=lambda task: lambda name: Rows(task.held_out(name), check_valid),
    )
    try:
        run_or_resume(config, processes, Parts(task=task))
        return "no error"
    except DataError as error:
        return str(error)


def pretrain(processes, overrides: list[str], fault: str | None = None, process: int = 0, step: int = 2) -> None:
    """launch/pretrain.py, disturbed by `fault` on `process` when it has made `step` steps; ends the process."""
    file, parts = str(ROOT / "tests/defaults.yaml"), {}
    if fault is not None and processes.index == process:
        config = read_config(file, overrides)
        if fault == "undefined loss":
            parts["task"] = Task(config, figures=lambda task: lambda *_: {"loss": float("nan")})
        else:
            parts["model"] = disturbed_model(config, step, FAULTS[fault])
    sys.argv = ["pretrain.py", "--config", file, *overrides]
    pretrain_command.main(**parts)


def doctor(processes, directory: str) -> list[tuple[str, str]]:
    """Checks and grades of the connection and of the disk."""
    findings = [*network(processes), *disk(Path(directory), processes)]
    return [(one.check, one.grade.value) for one in findings]


def pretrain_marked(processes, overrides: list[str], marks: str) -> None:
    """launch/pretrain.py, which marks the moments of the run in the file `marks`."""
    mark_moments(Path(marks))
    pretrain(processes, overrides)


def pretrain_impatiently(processes, overrides: list[str], seconds: float) -> None:
    """launch/pretrain.py with a short watchdog from the third step on; a start on busy cores takes longer."""
    file = str(ROOT / "tests/defaults.yaml")
    model = disturbed_model(read_config(file, overrides), 2, lambda directory: Watchdog(seconds).__enter__())
    sys.argv = ["pretrain.py", "--config", file, *overrides]
    pretrain_command.main(model=model)


def disturbed_model(config: Config, step: int, fault: Callable[[Path], None]) -> ModelFactory:
    """Builds a model that calls `fault` with the run's directory in its first forward pass after `step` steps."""
    passes = []

    def count(module, inputs) -> None:
        passes.append(module.training)
        if sum(passes) == step + 1 and module.training:
            fault(config.run_directory)

    def build(plan, generator):
        model = build_model(config.model, plan, generator)
        model.register_forward_pre_hook(count)
        return model

    return build


def _remove(directory: Path) -> None:
    while directory.exists():  # a thread may write a checkpoint there
        shutil.rmtree(directory, ignore_errors=True)


def _raise(error: Exception) -> None:
    raise error


FAULTS = {
    "hang": lambda directory: time.sleep(60),
    "death": lambda directory: os._exit(9),
    "own error": lambda directory: _raise(DataError("a shard of this process only is damaged; copy it again")),
    "removal": lambda directory: _remove(directory),
    "disk full": lambda directory: (directory / "checkpoints").write_text("in the way"),
    "console": lambda directory: os.close(1),
}


def measure_slowly(processes, seconds_a_batch: float, timeout_seconds: float) -> float:
    """Measures five batches under a watchdog."""

    def figures_of(inputs_BS, targets_BS):
        time.sleep(seconds_a_batch)
        return {"loss": torch.tensor(1.0)}

    batch = TextBatch(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))
    with Watchdog(timeout_seconds):
        return measure(figures_of, [batch] * 5, processes)["loss"]
