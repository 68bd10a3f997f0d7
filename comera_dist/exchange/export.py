"""Writes a run's model in a form that other programs read. Imports no DeepSpeed and needs no process group."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from comera_dist.checkpoints.disk import disk_errors_named
from comera_dist.errors import ConfigError
from comera_dist.exchange.hugging_face import write_hugging_face
from comera_dist.exchange.tensors import write_tensors
from comera_dist.run.trained import load_trained

TARGETS = ("hf", "tensors")


@dataclass(frozen=True)
class Exported:
    """A folder with the model of a run, and its size. `architecture` is the class that reads it, if there is one."""

    folder: str
    step: int  # of the checkpoint
    architecture: str | None
    bytes: int


def export(
    run: Path | str, output: Path | str, to: str = "hf", keep_factors: bool = False, step: int | None = None
) -> Exported:
    """Writes the model of a run's newest undamaged checkpoint, or of the checkpoint of `step`, into a new folder.

    `to` is "hf" for a model of transformers, with its tokenizer, or "tensors" for plain weights. With `keep_factors` a
    model of transformers keeps its weights as they were trained, so that they take as much space as in the checkpoint.
    Raises ComeraError, also if `output` exists.
    """
    if to not in TARGETS:
        raise ConfigError(f"--to {to} is not known; give one of {', '.join(TARGETS)}")
    if keep_factors and to != "hf":
        raise ConfigError("--keep-factors needs code that computes with factors; give it with --to hf")
    output = Path(output)
    if os.path.lexists(output):
        raise ConfigError(f"--output {output} exists; remove it, or name another folder")
    trained, architecture = load_trained(run, step=step), None
    with _published(output) as folder:
        if to == "hf":
            architecture = write_hugging_face(trained, folder, keep_factors)
        else:
            write_tensors(trained, folder)
        size = sum(file.stat().st_size for file in folder.iterdir())
    return Exported(str(output), trained.checkpoint.manifest["step"], architecture, size)


@contextmanager
def _published(output: Path) -> Iterator[Path]:
    """A new folder beside `output`, which becomes `output` in the end; it is removed if there is an error."""
    partial = output.with_name(f".{output.name}.partial")
    with disk_errors_named(f"{output} cannot be written", "name a folder on another disk with --output"):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            for file in partial.iterdir():  # safetensors writes files that only their owner can read
                shutil.copymode(partial / "config.json", file)
            partial.rename(output)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
