"""The loss of a trained decoder on any text."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import ConfigError, DataError
from comera_dist.generate.writer import tokenizer_of_run
from comera_dist.judge.windows import sliding_windows, window_batches
from comera_dist.run.evaluate import check_finite
from comera_dist.run.trained import load_trained
from comera_dist.runtime.forward import AutocastModel, measure
from comera_dist.runtime.processes import Processes

PIECE = 2**20  # chosen: characters of a text that are read at once


def judge_on_text(run: Path, processes: Processes, step: int | None, path: Path, stride: int | None) -> dict[str, Any]:
    """The loss of a run's checkpoint (None: the newest) on a file of UTF-8 text, which is read as one document.

    A window is as long as a sequence of training, and each begins `stride` tokens after the one before (None: half a
    window). Returns the loss in nats per token, the bits per byte of the file, and the perplexity per token, exp(loss).
    Collective. Raises ConfigError for an impossible stride, DataError for a file that is no text, and CheckpointError.
    """
    trained = load_trained(run, processes, step)
    config, tokenizer = trained.config, tokenizer_of_run(trained, run)
    window = config.data.seq_len
    stride = max(1, window // 2) if stride is None else stride
    if stride > window:
        raise ConfigError(f"--stride {stride} leaves tokens out, as a window has {window}; give {window} or less")
    text, model = TextFile(path, tokenizer), AutocastModel(trained.model, config.train.precision).eval()
    batches = window_batches(sliding_windows(text, window, stride), trained.micro_batch, processes)
    measured = measure(model, batches, processes)
    if not text.bytes:
        raise DataError(f"--text {path} is empty; name a file with text")
    tokens, nats = int(measured["targets"]), float(measured["loss"])
    check_finite(nats / tokens, str(path))
    return {
        "run": str(run),
        "step": trained.checkpoint.manifest["step"],
        "text": str(path),
        "window": window,
        "stride": stride,
        "tokens": tokens,
        "bytes": text.bytes,
        "loss": nats / tokens,
        "bits_per_byte": nats / math.log(2) / text.bytes,
        "perplexity": float(torch.tensor(nats / tokens, dtype=torch.float64).exp()),
    }


class TextFile:
    """EOS, where a document begins, and the token ids of a UTF-8 file. `bytes` is the number of bytes read so far.

    The file is read in pieces of whole lines if the tokenizer allows it, otherwise at once: the ids are those of the
    whole text. Raises DataError if the file is no UTF-8 text.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer):
        self.bytes, self._path, self._tokenizer = 0, path, tokenizer

    def __iter__(self) -> Iterator[int]:
        yield self._tokenizer.eos_id
        for piece in self._pieces():
            self.bytes += len(piece.encode())
            yield from self._tokenizer.encode(piece)

    def _pieces(self) -> Iterator[str]:
        try:
            # Any other value of `newline` changes line ends, or takes a carriage return for one.
            with self._path.open(encoding="utf-8", newline="\n") as file:
                while lines := file.readlines(PIECE if self._tokenizer.splits_at_lines else -1):
                    yield "".join(lines)
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"--text {self._path} cannot be read as UTF-8 text ({error}); name another") from error
