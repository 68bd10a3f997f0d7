"""Describes the machine for result files; as a command it prints the facts that the GPU suite reports."""

import os
import platform
import re
import subprocess
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch


def machine() -> dict[str, str | int]:
    """The facts that a reader needs to compare figures."""
    return {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepspeed": version("deepspeed"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _said_by(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main() -> None:
    """Prints lines of Markdown, and last the device's name in a form for file names."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"- device: {device}")
    print(f"- driver: {_said_by('nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader')}")
    print(f"- python: {platform.python_version()}, CUDA of torch: {torch.version.cuda}")
    print("- " + ", ".join(f"{name} {_version_of(name)}" for name in ("torch", "triton", "deepspeed", "liger_kernel")))
    print(f"- git commit: {_said_by('git', 'rev-parse', 'HEAD')}")
    print(re.sub(r"[^A-Za-z0-9]+", "-", device))


if __name__ == "__main__":
    main()
