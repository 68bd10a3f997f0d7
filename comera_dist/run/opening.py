"""Opens the parts of a run: data, checkpoint, model, optimizer, engine, ranks and observers."""

import time
from functools import partial

import torch

from comera_dist.checkpoints.disk import published
from comera_dist.checkpoints.mirror import Mirror
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.write import Saver
from comera_dist.config.tree import Config
from comera_dist.costs.utilization import peak_flops
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.report.console_log import ConsoleLog
from comera_dist.report.log_files import LogFiles
from comera_dist.report.plots import Plots
from comera_dist.report.records import Observers
from comera_dist.report.tensorboard_log import TensorboardLog, check_installed
from comera_dist.report.wandb_log import WandbLog
from comera_dist.run.compatibility import changes_line
from comera_dist.run.feed import Feed
from comera_dist.run.loss_watch import LossWatch
from comera_dist.run.patience import Patience
from comera_dist.run.profiling import StepProfile
from comera_dist.run.run_model import ModelSource, RunModel, model_source
from comera_dist.run.same_start import check_same_data
from comera_dist.run.saves import Saves
from comera_dist.run.session import Session
from comera_dist.run.start import Start, find_start, remarks
from comera_dist.run.teacher import open_teacher
from comera_dist.run.train import CONFIGURED, Parts
from comera_dist.run.unlogged_steps import UnloggedSteps
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.memory import check_fits
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together
from comera_dist.storage.run_directory import RunDirectory

ROW_BYTES = 16  # least bytes of a token in a batch: its id and its target are int64


def open_session(config: Config, processes: Processes, directory: RunDirectory, parts: Parts = CONFIGURED) -> Session:
    """A session that is ready for its next step. Collective. Raises ComeraError."""
    started = time.monotonic()
    check_installed(config)
    task = parts.task or open_task(config)
    check_same_data(task.fingerprint, config.data.described, processes)
    feed = Feed(config, task, processes)
    source = model_source(config, parts, processes)
    kept = Kept(config.checkpoint.keep, config.checkpoint.keep_every)
    mirror = open_mirror(config, directory, processes, kept)
    together(lambda: _check_kept(directory) if processes.is_first else None, processes)
    start = find_start(config, task, partial(source.plan, task), directory.checkpoints, processes)
    source.teacher = open_teacher(config, task, start.own, processes)
    # Checked before memory is taken.
    state_bytes = source.estimate(start.plan).state_bytes_per_process
    check_fits("weights, gradients and the optimizer's state", state_bytes, processes.device)
    check_fits("the rows of one step", config.step_tokens * ROW_BYTES // processes.count, torch.device("cpu"))
    patience = Patience(config.train.stop_early)
    saver = Saver(directory.checkpoints, kept, start.own, directory.logs)
    session = Session(
        config=config,
        processes=processes,
        directory=directory,
        task=task,
        feed=feed,
        model=_open_model(config, start, source, parts, processes),
        saves=Saves(config.checkpoint, directory.checkpoints, processes, saver, kept, mirror, patience),
        observers=_observers(config, processes, directory, parts),
        watch=LossWatch(config.train.spike_deviations),
        unlogged=UnloggedSteps(config, _peak_flops(config, processes)),
        patience=patience,
        rewinds=processes.from_first({rewind["step"]: rewind["row"] for rewind in directory.rewinds()}),
        clock_zero=started,
        profile=_profile(config, processes, directory),
    )
    if start.own is not None:
        session.resume(start.own)
    of_tensor = [] if start.weights else source.tensor_remarks(task)
    if source.teacher is not None:
        processes.say(f"Teacher from {source.teacher.checkpoint.folder}.")
    for line in remarks(config, start, of_tensor):
        processes.say(line)
    session.announce()
    processes.say(f"Ready for step {session.step + 1} after {time.monotonic() - started:.1f} s.")
    return session


def _peak_flops(config: Config, processes: Processes) -> float | None:
    """FLOP/s of the devices of all processes by their data sheet; None on a CPU and on an unknown GPU."""
    if processes.device.type != "cuda":
        return None
    peak = peak_flops(torch.cuda.get_device_name(processes.device), config.train.precision)
    return None if peak is None else processes.count * peak


def _profile(config: Config, processes: Processes, directory: RunDirectory) -> StepProfile | None:
    bounds = config.log.profile.bounds
    return StepProfile(*bounds, directory.path / "profile") if bounds and processes.is_first else None


def open_mirror(config: Config, directory: RunDirectory, processes: Processes, kept: Kept) -> Mirror | None:
    """The mirror on the first process, if one is configured. Fetches from it what the disk lacks. Collective."""
    url = config.checkpoint.mirror
    if url is None:
        return None
    mirror = together(lambda: Mirror(url, directory.path, kept) if processes.is_first else None, processes)
    lacks_all = mirror is not None and not published(directory.checkpoints)
    files = mirror.fetch() if mirror is not None and lacks_all else iter(())
    # A collective after each file tells all watchdogs that the copy goes on.
    while processes.from_first(together(lambda: next(files, None), processes)) is not None:
        pass
    return mirror


def _check_kept(directory: RunDirectory) -> None:
    """CheckpointError for a run whose checkpoints are gone: it must not silently start afresh, and drop its logs."""
    is_finished = directory.read_summary() is not None
    if (is_finished or directory.has_saved) and not published(directory.checkpoints):
        raise CheckpointError(
            f"{directory.path} {'is finished' if is_finished else 'has begun'} and its checkpoints are gone, so it "
            f"cannot go on; put them back, choose another run.name, or remove {directory.path} to train anew"
        )


def _open_model(config: Config, start: Start, source: ModelSource, parts: Parts, processes: Processes) -> RunModel:
    """The model of `start` on all processes; on a resume with the state of optimizer and ranks. Collective."""
    start_engine = partial(
        Engine,
        config=config,
        processes=processes,
        optimizer=parts.optimizer_factory,
        compilation=parts.compilation,
    )
    generator = None if start.weights else torch.Generator().manual_seed(config.run.seed)
    model = source.build(start.plan, generator)
    if start.weights is not None:
        start.weights.load_weights(model)
    engine = start_engine(model)
    if start.own is not None:
        engine.restore_moments(start.own.moments(), start.own.optimizer_step, start.own.gate_step)
    if start.weights is not None:
        processes.say(f"{'Resumed from' if start.own else 'Weights from'} {start.weights.folder}.")
    if start.own is not None and (line := changes_line(config, start.own)) is not None:
        processes.say(line)
    ranks = None
    if config.ranks.adapt:
        ranks = RankAdaptation(config, start.planned, source.estimate(start.planned).params, engine)
        ranks.start(start.own.run.get("ranks") if start.own else None)
    return RunModel(source, start_engine, start.planned, start.plan, engine, ranks)


def _observers(config: Config, processes: Processes, directory: RunDirectory, parts: Parts) -> Observers:
    """The observers of every run, then the caller's; none on other processes than the first."""
    if not processes.is_first:
        return Observers()
    # The plots are drawn before the console lists them and W&B sends them.
    own = LogFiles(directory), Plots(config, directory), ConsoleLog(config, directory)
    services = TensorboardLog(config, directory), WandbLog(config, directory)
    return Observers([*own, *services], parts.observers)
