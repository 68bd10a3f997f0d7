"""A model of transformers as a run of ours, dense or compressed, from which another run may start."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from comera_dist.checkpoints.disk import disk_errors_named
from comera_dist.compress.compress_run import compress_run, figures_of
from comera_dist.compress.write_run import new_run, write_run
from comera_dist.config.reader import read_config
from comera_dist.config.registry import KINDS
from comera_dist.config.tree import Config
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, ConfigError, DataError
from comera_dist.exchange.foreign_files import TOKENIZERS, ForeignWeights, read_settings, tokenizer_hashes
from comera_dist.models.adopted import shown
from comera_dist.models.family import build_model, kind_of, plan_model
from comera_dist.run.trained import load_trained
from comera_dist.runtime.processes import alone


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
    new_run(output)
    with _folder_beside(output) as place:
        dense = place / "dense"
        _write_dense(folder, config, dense)
        return compress_run(dense, None, output, params, format, tokens, max_tokens) | {"run": str(folder)}


@contextmanager
def _folder_beside(output: Path) -> Iterator[Path]:
    """A folder that is removed in the end. Raises CheckpointError if it cannot be made."""
    with disk_errors_named(f"{output} cannot be written", "name another --output"):
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.")
    with folder as place:
        yield Path(place)


def _configured(folder: Path, base: Path | None, overrides: Sequence[str]) -> Config:
    """The configuration of a run with the model in `folder`. Raises ConfigError and CheckpointError."""
    settings = read_settings(folder)
    kinds = {model_type: name for name in KINDS.names() for model_type in KINDS[name].adopts}
    found = shown(settings.get("model_type"))
    if found not in kinds:
        raise ConfigError(
            f"{folder} has model_type = {found}, which no kind of model here computes; name a folder of "
            f"{' or '.join(kinds)}"
        )
    model = {"kind": kinds[found], **KINDS[kinds[found]].adopted(settings)}
    # All matrices are dense, whatever the rules of the file say.
    decided = {f"model.{key}": json.dumps(value) for key, value in model.items()}
    decided |= {"tensor.layers": "[]", "tensor.embeddings": "[]"}
    for override in overrides:
        if override.partition("=")[0] in decided:
            raise ConfigError(f"{override} was given, but the model in {folder} decides that key; leave it out")
    return read_config(base, [*overrides, *(f"{key}={value}" for key, value in decided.items())])


def _write_dense(folder: Path, config: Config, output: Path) -> None:
    """Writes the dense model as the run `output`. Raises ComeraError."""
    task, processes = open_task(config), alone()
    _check_tokenizer(folder, config.data.folders[0])
    plan = plan_model(config, task.facts)
    settings = read_settings(folder)
    rows = kind_of(config.model).adopted_rows(config, plan, settings)
    weights = ForeignWeights(folder)
    with torch.device("meta"):  # no memory is taken before the sizes fit: config.json may name any
        _check_sizes(build_model(config.model, plan, None), weights, rows, settings.get("vocab_size"), folder)
    model = build_model(config.model, plan, None)
    _load(model, weights, rows)
    write_run(output, config, plan, model, task, processes)


def _check_tokenizer(folder: Path, corpus: Path) -> None:
    """DataError if the corpus was made with another tokenizer than that of the model."""
    theirs = tokenizer_hashes(folder)
    if not theirs:
        raise DataError(f"{folder} has no {' or '.join(TOKENIZERS)}; put the tokenizer of the model there")
    if not theirs.keys() & tokenizer_hashes(corpus):
        raise DataError(
            f"{corpus} was made with another tokenizer than that of {folder}; prepare the data "
            f"with --tokenizer {next(iter(theirs.values()))}, and set data.corpus"
        )


def _check_sizes(
    model: nn.Module, weights: ForeignWeights, rows: dict[str, Sequence[int]], vocab_size: Any, folder: Path
) -> None:
    """CheckpointError if a parameter is not stored, or in another shape.

    One in `rows` may have more rows if they are the vocabulary of config.json: a tokenizer need not fill it. Further
    classes would be left out of all probabilities.
    """
    for name, parameter in model.named_parameters():
        found, expected = weights.size(name), tuple(parameter.shape)
        fits = found == expected
        if found and name in rows:
            used = max(rows[name]) + 1
            fits = found[1:] == expected[1:] and (found[0] == used or found[0] == vocab_size > used)
        if not fits:
            raise CheckpointError(
                f"{folder} holds {name} as {'nothing' if found is None else found}, expected {expected}; take a model "
                f"whose weights fit its config.json and its tokenizer"
            )


@torch.no_grad()
def _load(model: nn.Module, weights: ForeignWeights, rows: dict[str, Sequence[int]]) -> None:
    """Copies the weights, of a parameter in `rows` only these rows, in this order. Raises CheckpointError."""
    for name, parameter in model.named_parameters():
        found = weights.read(name)
        parameter.copy_(found[list(rows[name])] if name in rows else found)
