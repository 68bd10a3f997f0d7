"""Single steps: of all engines, static, bad ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from listening import Listening
from poisoned import MarkedRows, is_marked, poisoned_model
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.data.windows import TextBatch
from comera_dist.errors import ComeraError, TrainingError
from comera_dist.ops.cross_entropy import without_waiting
from comera_dist.run.loop import run_or_resume
from comera_dist.run.train import Parts
from comera_dist.runtime.graphs import Compilation, as_it_is
from scenarios.reading import Task
from scenarios.runs import digest_of, open_run, train_runs, with_dropout


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


def said(processes, runs: list[list[str]], pretends_gpu: bool) -> list[str]:
    """What train_runs or train_static say about settings of `train` without effect."""
    processes = Listening(processes)
    (train_static if pretends_gpu else train_runs)(processes, runs)
    return [line for line in processes.said if line.startswith("train.")]


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
    """The end of five steps, of which the third is bad on the last process, and of four without it.

    An end is loss, norm, weights and the state of the ranks' objective.
    """
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
            ranks = session.model.ranks and session.model.ranks.objective.state()
            found.append([result.loss, result.grad_norm, digest_of(session.model.engine), ranks])
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
