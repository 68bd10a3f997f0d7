"""Where a run's figures go: metrics.jsonl and Weights & Biases. The only file that knows wandb."""

import netrc
import os
import secrets
import string

from comera_dist.config import Config
from comera_dist.run_directory import RunDirectory

WANDB_HOST = "api.wandb.ai"
INIT_SECONDS = 30  # wandb waits 90 by default


class Metrics:
    """The first process's log. Every record has a `step`, so that a resumed run goes on where it was."""

    def __init__(self, directory: RunDirectory, config: Config):
        self._directory = directory
        self._run = self._start_wandb(config)

    def log(self, record: dict) -> None:
        self._directory.append("metrics.jsonl", record)
        if self._run is not None:
            self._run.log(record, step=record["step"])

    def log_ranks(self, record: dict) -> None:
        """One sync of the rank gates: everything to ranks.jsonl, single numbers to W&B."""
        self._directory.append("ranks.jsonl", record)
        if self._run is not None:
            figures = {f"ranks/{key}": value for key, value in record.items() if isinstance(value, int | float)}
            self._run.log(figures, step=record["step"])

    def finish(self, summary: dict, images: dict[str, str]) -> None:
        """Sends the summary; `images` are names and paths of PNG files."""
        if self._run is None:
            return
        import wandb

        self._run.log({f"plots/{name}": wandb.Image(path) for name, path in images.items()})
        self._run.summary.update({key: value for key, value in summary.items() if key != "ranks"})

    def close(self) -> None:
        """Waits until W&B has written everything."""
        if self._run is not None:
            self._run.finish()

    def _start_wandb(self, config: Config):
        mode = wandb_mode(config.wandb.mode)
        if mode == "disabled":
            return None
        run_id = self._directory.facts().get("wandb_id") or new_run_id()
        self._directory.note(wandb_id=run_id)
        import wandb

        def start(mode: str):
            return wandb.init(
                project=config.wandb.project,
                entity=config.wandb.entity,
                name=config.run.name,
                id=run_id,
                resume="allow",
                mode=mode,
                dir=self._directory.path,
                config=config.model_dump(mode="json"),
                settings=wandb.Settings(
                    silent=True, init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT", INIT_SECONDS))
                ),
            )

        try:
            return start(mode)
        except (wandb.errors.Error, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(
                f"Weights & Biases cannot be reached ({reason}); the run is recorded offline in "
                f"{self._directory.path}/wandb, send it later with `wandb sync`.",
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
