"""A run on Weights & Biases. The only file that imports wandb.

W&B must not end a run or change its exit status: its errors are printed once, and the run goes on.
"""

import logging
import netrc
import os
import queue
import secrets
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from comera_dist.config.secrets import holds_secret
from comera_dist.config.tree import Config
from comera_dist.errors import first_line
from comera_dist.report.live_pictures import due_picture
from comera_dist.report.records import (
    NormsMeasured,
    RanksSynced,
    Record,
    RunEnded,
    RunFinished,
    RunStarted,
    StepLogged,
    curves_of,
)
from comera_dist.storage.run_directory import RunDirectory

WANDB_HOST = "api.wandb.ai"
INIT_SECONDS = 30  # chosen: wandb's own default of 90 would delay the first step of a run without a network
FINISH_SECONDS = 60  # chosen: for W&B to write or send the rest when a run ends
HASTY_SECONDS = 10  # the same when it is stopped: launchers and schedulers mostly kill after 30 s
Mode = Literal["online", "offline", "disabled"]
Call = Callable[[Any], object]  # of a W&B run, whose class is not imported before a run uses W&B


class WandbLog:
    """Sends the figures, the summary and the plots of a run.

    Every record holds its `step`, the x axis of all curves. W&B's own step would not do: it must rise, over all starts,
    so W&B would drop or shift the figures of a start from an earlier step than the last one that was sent.

    `start` opens the W&B run for (directory, configuration, run id, mode); tests pass another one.
    """

    def __init__(self, config: Config, directory: RunDirectory, start: Callable[..., Any] | None = None):
        self._config, self._directory, self._start = config, directory, start or online_or_offline
        self._calls = WandbCalls(None, "")

    def __call__(self, record: Record) -> None:
        match record:
            case RunStarted():
                self._calls = WandbCalls(self._started(record), f"{self._directory.path}/wandb")
                self._calls.do(lambda run: run.define_metric("*", step_metric="step"))
            case StepLogged(figures):
                self._calls.do(lambda run: run.log(figures))
            case RanksSynced(figures) | NormsMeasured(figures):
                curves = {"step": figures["step"], **curves_of(record)}
                self._calls.do(lambda run: run.log(curves))
            case RunFinished(summary):
                plots = sorted(self._directory.plots.glob("*.png"))
                self._calls.do(lambda run: _send_result(run, summary, plots))
            case RunEnded(in_haste):
                self._calls.close(HASTY_SECONDS if in_haste else FINISH_SECONDS)
        if (due := due_picture(record, self._config)) is not None:
            drawn = list(self._directory.plots.glob(f"{due.name}.png"))
            self._calls.do(lambda run: run.log(_pictures(drawn, due.step)))

    def _started(self, record: RunStarted) -> Any:
        """A W&B run, None if it is disabled or cannot even be recorded offline."""
        try:
            mode = wandb_mode(self._config.wandb.mode)
            if mode == "disabled":
                return None
            earlier = self._directory.facts().get("wandb_id") if record.step else None  # else: this run begins anew
            run_id = earlier or secrets.token_hex(4)
            self._directory.note(wandb_id=run_id)
            return self._start(self._directory, self._config, run_id, mode)
        except Exception as error:  # of any class: the run is worth more than its report
            print(f"Weights & Biases does not start ({first_line(error)}); the run goes on without it.", flush=True)
            return None


class WandbCalls:
    """Makes the calls to a W&B run on a thread of its own, where they may fail or hang. Without a run it makes none.

    A signal to all processes of a run also ends W&B's helper process, and later calls raise errors of any class.
    """

    def __init__(self, run: Any, folder: str):
        self._folder, self._calls = folder, queue.SimpleQueue[Call | None]()
        self._thread = None
        if run is not None:
            self._thread = threading.Thread(target=self._work, args=(run,), daemon=True)
            self._thread.start()

    def do(self, call: Call) -> None:
        """Queues `call(run)` behind the earlier calls; nothing is queued for a run that broke off."""
        if self._thread is not None and self._thread.is_alive():
            self._calls.put(call)

    def close(self, seconds: float) -> None:
        """Finishes the W&B run. Returns after `seconds` at the latest."""
        if self._thread is None:
            return
        self._calls.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._say(f"did not finish within {seconds} s")
        self._thread = None

    def _work(self, run: Any) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call(run)
            run.finish()
        except Exception as error:
            self._say(f"broke off ({first_line(error)})")

    def _say(self, fault: str) -> None:
        print(
            f"Weights & Biases {fault}; the run does not depend on it: its figures are in metrics.jsonl, and "
            f"`{sync_command(self._folder)}` sends what W&B did not get.",
            flush=True,
        )


def _send_result(run: Any, summary: dict[str, Any], plots: list[Path]) -> None:
    run.log(_pictures(plots, summary["step"]))
    run.summary.update({key: value for key, value in summary.items() if key != "ranks"})


def _pictures(plots: list[Path], step: int) -> dict[str, Any]:
    import wandb

    return {"step": step, **{f"plots/{path.stem}": wandb.Image(str(path)) for path in plots}}


def online_or_offline(directory: RunDirectory, config: Config, run_id: str, mode: Mode) -> Any:
    """A W&B run, recorded offline if W&B cannot be reached."""
    import wandb

    # If its helper process has ended, wandb's connection logs so through asyncio, besides raising an error.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    seconds = float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS))

    def start(mode: Mode) -> Any:
        return wandb.init(
            project=config.wandb.project,
            entity=config.wandb.entity,
            name=config.run.name,
            id=run_id,
            resume="allow",
            mode=mode,
            dir=directory.path,
            config=config.model_dump(mode="json"),
            # The metadata hold the command line.
            settings=wandb.Settings(silent=True, init_timeout=seconds, x_disable_meta=holds_secret(sys.argv)),
        )

    try:
        return start(mode)
    except (wandb.errors.Error, OSError) as error:
        print(
            f"Weights & Biases cannot be reached ({first_line(error)}); the run is recorded offline, and "
            f"`{sync_command(f'{directory.path}/wandb')}` sends it later.",
            flush=True,
        )
        wandb.teardown()  # its service still holds the run's id for the failed start
        return start("offline")


def sync_command(folder: str) -> str:
    """Sends what W&B has recorded in `folder`.

    Without the folder wandb looks into ./wandb, and without the option it passes over a run that began online.
    """
    return shlex.join(["wandb", "sync", "--include-online", folder])


def wandb_mode(configured: str) -> Mode:
    """The mode `configured`. For `auto` the environment's WANDB_MODE decides, or else whether there is an API key."""
    return chosen_mode(configured) or ("online" if has_key() else "offline")


def chosen_mode(configured: str) -> Mode | None:
    """The mode that the configuration names, or else WANDB_MODE; None if neither does."""
    mode = configured if configured != "auto" else os.environ.get("WANDB_MODE") or None
    return cast(Mode | None, mode)  # wandb itself refuses another WANDB_MODE


def has_key() -> bool:
    """Whether there is an API key for W&B."""
    return bool(os.environ.get("WANDB_API_KEY")) or _has_netrc_key()


def _has_netrc_key() -> bool:
    """Whether there is a key for the user's W&B server. A file of keys may be of other programs, and unreadable."""
    try:
        host = urlsplit(os.environ.get("WANDB_BASE_URL", f"https://{WANDB_HOST}")).hostname
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host or WANDB_HOST) is not None
    except (OSError, ValueError, netrc.NetrcParseError):
        return False
