"""Tokenizes units on several processes and returns them in order, with a bounded number under way."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.text.shards import Unit

_UNDER_WAY_PER_WORKER = 3
_worker_tokenizer: Tokenizer | None = None
_worker_error: DataError | None = None


def encode_in_order(units: Iterator[Unit], tokenizer_path: Path, workers: int) -> Iterator[tuple[Unit, bytes]]:
    """(unit, raw tokens) in the order of `units`, which is read only a few units ahead.

    DataError when a worker dies (most often: killed for want of memory).
    """
    if workers == 1:
        _start_worker(tokenizer_path)
        yield from ((unit, encode_texts(unit.texts)) for unit in units)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of pyarrow half-way
    pool = ProcessPoolExecutor(workers, context, initializer=_start_pool_worker, initargs=(tokenizer_path,))
    under_way = deque()
    try:
        for unit in units:
            under_way.append((unit, pool.submit(encode_texts, unit.texts)))
            if len(under_way) >= workers * _UNDER_WAY_PER_WORKER:
                yield _result(*under_way.popleft())
        while under_way:
            yield _result(*under_way.popleft())
    except BrokenProcessPool as error:
        raise DataError(
            "A tokenizing process died, most often for want of memory; run the same command again with fewer --workers."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def encode_texts(texts: list[str]) -> bytes:
    """Raw little-endian tokens of the documents, each followed by EOS."""
    if _worker_error is not None:
        raise _worker_error
    ids = []
    for text in texts:
        ids += _worker_tokenizer.encode(text)
        ids.append(_worker_tokenizer.eos_id)
    return np.array(ids, dtype=token_dtype(_worker_tokenizer.vocab_size)).tobytes()


def token_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 65536 else "<u4")


def _result(unit: Unit, future: Future) -> tuple[Unit, bytes]:
    return unit, future.result()


def _start_worker(tokenizer_path: Path) -> None:
    global _worker_tokenizer
    _worker_tokenizer = Tokenizer(tokenizer_path)


def _start_pool_worker(tokenizer_path: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    threading.Thread(target=_die_with_parent, daemon=True).start()
    global _worker_error
    try:
        _start_worker(tokenizer_path)
    except DataError as error:  # a pool would print it as a traceback
        _worker_error = error


def _die_with_parent() -> None:
    """A parent that was killed cannot stop its workers, and they would wait for work forever."""
    multiprocessing.parent_process().join()
    os._exit(1)
