"""A run on Weights & Biases. The only file that knows wandb.

W&B may not end a run or change its exit status: its errors are said once.
"""

import logging
import netrc
import os
import queue
import secrets
import string
import threading
from collections.abc import Callable
from pathlib import Path

from comera_dist.config.tree import Config
from comera_dist.errors import first_line
from comera_dist.report.records import RanksSynced, Record, RunEnded, RunFinished, RunStarted, StepLogged
from comera_dist.storage.run_directory import RunDirectory

WANDB_HOST = "api.wandb.ai"
INIT_SECONDS = 30  # wandb waits 90 by default
FINISH_SECONDS = 60  # for W&B to write or send what is left when a run ends
HASTY_SECONDS = 10  # the same when it is stopped: launchers and schedulers mostly kill after 30 s


class WandbLog:
    """Sends the figures, the summary and the plots of a run.

    `start` opens the W&B run for (directory, configuration, run id, mode); a test hands in another one.
    """

    def __init__(self, config: Config, directory: RunDirectory, start: Callable | None = None):
        self._config, self._directory, self._start = config, directory, start or online_or_offline
        self._calls = WandbCalls(None, "")

    def __call__(self, record: Record) -> None:
        match record:
            case RunStarted():
                run = self._started()
                self._calls = WandbCalls(run, f"{self._directory.path}/wandb")
            case StepLogged(figures):
                self._calls.do(lambda run: run.log(figures, step=figures["step"]))
            case RanksSynced(figures):
                numbers = {f"ranks/{key}": value for key, value in figures.items() if isinstance(value, int | float)}
                self._calls.do(lambda run: run.log(numbers, step=figures["step"]))
            case RunFinished(summary):
                plots = sorted(self._directory.plots.glob("*.png"))
                self._calls.do(lambda run: _send_result(run, summary, plots))
            case RunEnded(in_haste):
                self._calls.close(HASTY_SECONDS if in_haste else FINISH_SECONDS)

    def _started(self):
        """A W&B run; None where it is disabled or cannot even be recorded offline."""
        mode = wandb_mode(self._config.wandb.mode)
        if mode == "disabled":
            return None
        try:
            run_id = self._directory.facts().get("wandb_id") or new_run_id()
            self._directory.note(wandb_id=run_id)
            return self._start(self._directory, self._config, run_id, mode)
        except Exception as error:  # whatever it raises, the run is worth more
            print(f"Weights & Biases does not start ({first_line(error)}); the run goes on without it.", flush=True)
            return None


class WandbCalls:
    """Makes calls to a W&B run (None: makes none) on a thread of its own, which may fail or hang there.

    A signal to all processes of a run ends W&B's helper too, and calls to it raise whatever they like then.
    """

    def __init__(self, run, folder: str):
        self._folder, self._calls = folder, queue.SimpleQueue()
        self._thread = None
        if run is not None:
            self._thread = threading.Thread(target=self._work, args=(run,), daemon=True)
            self._thread.start()

    def do(self, call: Callable) -> None:
        """Calls `call(run)` after the calls before it."""
        if self._thread is not None:
            self._calls.put(call)

    def close(self, seconds: float) -> None:
        """Finishes the run; returns after so many seconds at the latest."""
        if self._thread is None:
            return
        self._calls.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._say(f"did not finish within {seconds} s")
        self._thread = None

    def _work(self, run) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call(run)
            run.finish()
        except Exception as error:
            self._say(f"broke off ({first_line(error)})")

    def _say(self, what: str) -> None:
        print(
            f"Weights & Biases {what}; the run does not depend on it: its figures are in metrics.jsonl, and "
            f"`wandb sync` sends what {self._folder} has.",
            flush=True,
        )


def _send_result(run, summary: dict, plots: list[Path]) -> None:
    import wandb

    run.log({f"plots/{path.stem}": wandb.Image(str(path)) for path in plots})
    run.summary.update({key: value for key, value in summary.items() if key != "ranks"})


def online_or_offline(directory: RunDirectory, config: Config, run_id: str, mode: str):
    """A W&B run that is recorded offline where W&B cannot be reached."""
    import wandb

    # Where its helper is gone, its connection says so there, besides raising.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)

    def start(mode: str):
        return wandb.init(
            project=config.wandb.project,
            entity=config.wandb.entity,
            name=config.run.name,
            id=run_id,
            resume="allow",
            mode=mode,
            dir=directory.path,
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(
                silent=True, init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS))
            ),
        )

    try:
        return start(mode)
    except (wandb.errors.Error, OSError) as error:
        print(
            f"Weights & Biases cannot be reached ({first_line(error)}); the run is recorded offline in "
            f"{directory.path}/wandb, send it later with `wandb sync`.",
            flush=True,
        )
        wandb.teardown()  # its service still holds the run's id for the failed start
        return start("offline")


def wandb_mode(configured: str) -> str:
    """`online`, `offline` or `disabled`; the environment's WANDB_MODE and the presence of an API key decide `auto`."""
    if configured != "auto":
        return configured
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    return "online" if os.environ.get("WANDB_API_KEY") or _has_netrc_key() else "offline"


def _has_netrc_key() -> bool:
    try:
        return netrc.netrc().authenticators(WANDB_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def new_run_id() -> str:
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(8))
