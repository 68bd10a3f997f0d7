"""The files of a run that other programs read: config.yaml, run.json, metrics.jsonl, ranks.jsonl, summary.json."""

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import yaml

from comera_dist.config import Config
from comera_dist.finite_json import finite_json

PACKAGES = ("torch", "deepspeed", "opt_einsum", "sentencepiece", "safetensors", "numpy")


class RunDirectory:
    """`runs/<name>`; only the first process writes to it (checkpoints have a writer of their own)."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.plots = path / "plots"
        self.summary = path / "summary.json"

    def open(self, config: Config, num_processes: int) -> None:
        """Makes the folder and describes the run in it; keeps what an earlier start of the same run noted."""
        self.plots.mkdir(parents=True, exist_ok=True)
        write_whole(self.path / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        self.note(
            git=_git_hash(),
            python=platform.python_version(),
            versions={name: version(name) for name in PACKAGES},
            world_size=num_processes,
        )

    def note(self, **facts) -> None:
        """Adds facts to run.json."""
        write_whole(self.path / "run.json", finite_json(self.facts() | facts, indent=1))

    def facts(self) -> dict:
        return read_json(self.path / "run.json") or {}

    def forget_after(self, step: int) -> None:
        """Drops lines of the logs that a killed run wrote after the checkpoint it now resumes from."""
        for name in ("metrics.jsonl", "ranks.jsonl"):
            if (self.path / name).exists():
                kept = [record for record in self.read(name) if record["step"] <= step]
                write_whole(self.path / name, "".join(finite_json(record) + "\n" for record in kept))

    def append(self, name: str, record: dict) -> None:
        with (self.path / name).open("a") as file:
            file.write(finite_json(record) + "\n")

    def read(self, name: str) -> list[dict]:
        """Records of a .jsonl file; a line that a kill cut short is left out."""
        records = []
        if (self.path / name).exists():
            for line in (self.path / name).read_text().splitlines():
                try:
                    records.append(json.loads(line))
                except ValueError:
                    continue
        return records

    def finish(self, summary: dict) -> None:
        write_whole(self.summary, finite_json(summary, indent=1))


def write_whole(path: Path, text: str) -> None:
    """Replaces a file in one move: a reader sees the old one or the new one."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(text)
    os.replace(partial, path)


def read_json(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _git_hash() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
