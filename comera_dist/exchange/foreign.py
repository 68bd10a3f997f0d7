"""A model of transformers as a run of ours, dense or compressed, from which another run may start."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from comera_dist.compress.compress_run import compress_run, figures_of
from comera_dist.compress.write_run import write_run
from comera_dist.config.reader import read_config
from comera_dist.config.registry import KINDS
from comera_dist.config.tree import Config
from comera_dist.data.contents import file_sha256
from comera_dist.data.manifest import read_json
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, ConfigError, DataError
from comera_dist.models.family import build_model, kind_of, plan_model
from comera_dist.run.trained import load_trained
from comera_dist.runtime.processes import alone

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model")
# Names in the first checkpoints of BERT, and in those that transformers writes now.
RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def import_model(
    folder: Path,
    output: Path,
    base: Path | None = None,
    overrides: Sequence[str] = (),
    params: int | None = None,
    format: str = "low_rank",
    tokens: int = 0,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """Writes the model in `folder` as the run `output`; with `params` compressed to so many numbers by `compress_run`.

    The configuration is that of the file `base` and of `overrides`, with the model's own sizes. Returns the result of
    `compress_run`, without a compression only its `before`. Raises ComeraError.
    """
    config = _configured(folder, base, overrides)
    if params is None:
        _write_dense(folder, config, output)
        figures = figures_of(load_trained(output), alone(), max_tokens)
        return {"run": str(folder), "output": str(output), "before": figures}
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as place:
        dense = Path(place) / "dense"
        _write_dense(folder, config, dense)
        return compress_run(dense, None, output, params, format, tokens, max_tokens) | {"run": str(folder)}


def _configured(folder: Path, base: Path | None, overrides: Sequence[str]) -> Config:
    """The configuration of a run with the model in `folder`. Raises ConfigError and CheckpointError."""
    settings = _read_json(folder / "config.json")
    kinds = {model_type: name for name in KINDS.names() for model_type in KINDS[name].adopts}
    found = str(settings.get("model_type"))
    if found not in kinds:
        raise ConfigError(
            f"{folder} has model_type = {found}, which no kind of model here computes; name a folder of "
            f"{' or '.join(kinds)}"
        )
    model = {"kind": kinds[found], **KINDS[kinds[found]].adopted(settings)}
    return read_config(base, [*overrides, *(f"model.{key}={json.dumps(value)}" for key, value in model.items())])


def _write_dense(folder: Path, config: Config, output: Path) -> None:
    """Writes the dense model as the run `output`. Raises ComeraError."""
    task, processes = open_task(config), alone()
    _check_tokenizer(folder, config.data.folders[0])
    plan = plan_model(config, task.facts)
    model = build_model(config.model, plan, None)
    rows = kind_of(config.model).adopted_rows(config, plan, _read_json(folder / "config.json"))
    _load(model, dict(_weights(folder)), rows, folder)
    write_run(output, config, plan, model, task, processes)


def _check_tokenizer(folder: Path, corpus: Path) -> None:
    """DataError if the corpus was made with another tokenizer than that of the model."""
    theirs = {file_sha256(file): file for name in TOKENIZERS if (file := folder / name).exists()}
    if not theirs:
        raise DataError(f"{folder} has no {' or '.join(TOKENIZERS)}; put the tokenizer of the model there")
    ours = {file_sha256(file) for name in TOKENIZERS if (file := corpus / name).exists()}
    if not theirs.keys() & ours:
        raise DataError(
            f"{corpus} was made with another tokenizer than that of {folder}; prepare the data "
            f"with --tokenizer {next(iter(theirs.values()))}, and set data.corpus"
        )


def _weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All weights by name in fp32. Raises CheckpointError; runs no code of the folder."""
    names = [WEIGHTS]
    if (folder / INDEX).exists():
        names = sorted(set(_read_json(folder / INDEX).get("weight_map", {}).values()))
    for name in names:
        file = folder / Path(str(name)).name  # another path might lead out of the folder
        try:
            with safe_open(file, framework="pt") as opened:
                yield from ((_renamed(key), opened.get_tensor(key).float()) for key in opened.keys())  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error}); save the model as safetensors, e.g. with save_pretrained"
            ) from error


def _renamed(name: str) -> str:
    for before, now in RENAMED.items():
        name = name.replace(before, now)
    return name


@torch.no_grad()
def _load(model: nn.Module, weights: dict[str, Tensor], rows: dict[str, Sequence[int]], folder: Path) -> None:
    """Copies the weights, of a parameter in `rows` only these rows, in this order. Raises CheckpointError."""
    for name, parameter in model.named_parameters():
        found = weights.get(name)
        if found is not None and name in rows and max(rows[name]) < len(found):
            found = found[list(rows[name])]
        if found is None or found.shape != parameter.shape:
            shape = "nothing" if found is None else tuple(found.shape)
            raise CheckpointError(
                f"{folder} holds {name} as {shape}, expected {tuple(parameter.shape)}; take a model whose weights fit "
                f"its config.json and its tokenizer"
            )
        parameter.copy_(found)


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError."""
    try:
        found = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); name the folder of a model of transformers") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file} holds no JSON object; name the folder of a model of transformers")
    return found
