"""The files of a model of transformers. Nobody vouches for them: they are read as data, and no code of them is run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from comera_dist.data.contents import file_sha256
from comera_dist.data.manifest import read_json
from comera_dist.errors import CheckpointError, DataError

SETTINGS, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
# Names in the first checkpoints of BERT, and in those that transformers writes now.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
FLOATS = ("F64", "F32", "F16", "BF16")  # numbers of other types are quantized, and mean nothing without their scales


def read_settings(folder: Path) -> dict[str, Any]:
    """The content of config.json. Raises CheckpointError."""
    return _read_object(folder / SETTINGS)


def tokenizer_hashes(folder: Path) -> dict[str, Path]:
    """The tokenizers in a folder by sha256. DataError for one that cannot be read."""
    try:
        return {file_sha256(file): file for name in TOKENIZERS if (file := folder / name).is_file()}
    except OSError as error:
        raise DataError(f"the tokenizer in {folder} cannot be read ({error.strerror}); mend the folder") from error


class ForeignWeights:
    """The weights in the safetensors files of a folder. Each is read when it is asked for.

    Raises CheckpointError for files that cannot be read.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._stored: dict[str, tuple[Path, Any, str]] = {}  # by name: the file, its reader, the name in the file
        for name in _files(folder):
            with _readable(file := folder / Path(name).name):  # another path might lead out of the folder
                if not file.is_file():  # a pipe would never end
                    raise FileNotFoundError("there is no such file")
                opened: Any = safe_open(file, framework="pt")
                self._stored |= {_renamed(key): (file, opened, key) for key in opened.keys()}  # noqa: SIM118

    def size(self, name: str) -> tuple[int, ...] | None:
        """The shape of a weight; None if there is none of this name."""
        if name not in self._stored:
            return None
        file, opened, key = self._stored[name]
        with _readable(file):
            return tuple(opened.get_slice(key).get_shape())

    def read(self, name: str) -> Tensor:
        """A weight in fp32. CheckpointError if it is quantized, or holds a number that is not finite."""
        file, opened, key = self._stored[name]
        with _readable(file):
            kind = opened.get_slice(key).get_dtype()
            if kind not in FLOATS:
                raise CheckpointError(
                    f"{self._folder} holds {name} as {kind}, expected one of {', '.join(FLOATS)}; take a model that is "
                    f"not quantized"
                )
            weight: Tensor = opened.get_tensor(key).float()
        if not torch.isfinite(weight).all():
            raise CheckpointError(f"{self._folder} holds {name} with numbers that are not finite; take another copy")
        return weight


def _files(folder: Path) -> list[str]:
    """The names of the files of weights."""
    if not (folder / INDEX).exists():
        return [WEIGHTS]
    places = _read_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise CheckpointError(
            f"{folder / INDEX} has no weight_map of weights and files; save the model anew, e.g. with save_pretrained"
        )
    return sorted(set(places.values()))


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raises CheckpointError for a file that cannot be read."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:  # ValueError: of a name that no file can have
        raise CheckpointError(
            f"{file} cannot be read ({error}); save the model as safetensors, e.g. with save_pretrained"
        ) from error


def _renamed(name: str) -> str:
    for before, now in RENAMED.items():
        name = name.replace(before, now)
    return name


def _read_object(file: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError."""
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); name the folder of a model of transformers") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds no JSON object; name the folder of a model of transformers")
    return found
