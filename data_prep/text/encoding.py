"""Tokenizes units on several processes and returns them in order, with a bounded number under way."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.text.shards import Unit

_UNDER_WAY_PER_WORKER = 3  # chosen: keeps a worker busy while its results wait for earlier ones
_worker_tokenizer = cache(open_tokenizer)  # each worker opens it once


def encode_in_order(units: Iterator[Unit], tokenizer_path: Path, workers: int) -> Iterator[tuple[Unit, bytes]]:
    """(unit, raw tokens) in the order of `units`, which is read only a few units ahead.

    Raises DataError if a worker dies, most often because memory ran out.
    """
    if workers == 1:
        tokenizer = open_tokenizer(tokenizer_path)
        yield from ((unit, encode_texts(unit.texts, tokenizer)) for unit in units)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of pyarrow half-way
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    under_way: deque[tuple[Unit, Future[bytes]]] = deque()
    try:
        for unit in units:
            under_way.append((unit, pool.submit(_encode_in_worker, unit.texts, tokenizer_path)))
            if len(under_way) >= workers * _UNDER_WAY_PER_WORKER:
                unit, future = under_way.popleft()
                yield unit, future.result()
        for unit, future in under_way:
            yield unit, future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a tokenizing process died, most often for want of memory; run the same command again with fewer --workers"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def encode_texts(texts: list[str], tokenizer: Tokenizer) -> bytes:
    """Raw little-endian tokens of the documents, each followed by EOS."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer.encode(text)
        ids.append(tokenizer.eos_id)
    return np.array(ids, dtype=token_dtype(tokenizer.vocab_size)).tobytes()


def lossy_lines(tokenizer: Tokenizer) -> list[str]:
    """One line if the tokenizer changes texts, otherwise none."""
    if tokenizer.keeps_text:
        return []
    return [
        f"{tokenizer.path} changes some texts, e.g. their spaces, line breaks, accents or case; ids stand for changed "
        "texts."
    ]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def _encode_in_worker(texts: list[str], tokenizer_path: Path) -> bytes:
    return encode_texts(texts, _worker_tokenizer(tokenizer_path))


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C the parent stops its workers
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """A parent that was killed cannot stop its workers, which would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)
