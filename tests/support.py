"""Helpers of many tests: generated data of every kind, tiny runs on them, and runs on several processes."""

import hashlib
import io
import json
import multiprocessing
import multiprocessing.forkserver
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from comera_dist.data.columns import Column
from data_prep.files.column_folder import ColumnFolder

ROOT = Path(__file__).resolve().parent.parent
VOCAB = 64

TINY = [
    "model.d_model=16",
    "model.layers=2",
    "model.heads=2",
    "model.d_ff=24",
    "tensor.order=2",
    "tensor.rank=4",
    "tensor.outer_rank=4",
    "tensor.embedding_order=2",
    "tensor.embedding_rank=4",
    "data.seq_len=16",
    "train.batch_tokens=128",
    "train.steps=8",
    "log.every=1",
    "eval.every=0",
    "log.plots=false",
    "wandb.mode=disabled",
]
# DeepSpeed 0.19.8 and torch's optimizers import these at the first step: 2 seconds in each process.
IMPORTED_LATE = ("deepspeed.module_inject.auto_ep_layer", "torch._dynamo")

CLICK_TABLES = [60, 7, 48]
_TRAINS = ["tensor.order=2", "tensor.rank=4", "tensor.outer_rank=4", "tensor.embedding_order=2"]
_SHORT = ["train.steps=8", "log.every=1", "eval.every=0", "log.plots=false", "wandb.mode=disabled"]
_ENCODER = ["model.kind=encoder", "model.d_model=16", "model.layers=2", "model.heads=2", "model.d_ff=24"]
_ENCODER += [
    "model.dropout=0.0",
    "model.positions=16",
    "data.seq_len=16",
    "train.batch_size=8",
    "tensor.embedding_rank=4",
    *_TRAINS,
    *_SHORT,
]
# Overrides of the tiny runs of the other kinds of model; the first two read make_pairs, the last one make_clicks.
WORKLOADS = {
    "classifier": [*_ENCODER, "model.head=classification"],
    "masked_lm": [*_ENCODER, "model.head=masked_lm", "model.norm=pre"],
    "dlrm": [
        *["model.kind=dlrm", "model.embedding_dim=8", "model.bottom=[48]", "model.top=[64]", "model.format=tensor"],
        *["tensor.embedding_rank=3", "tensor.embedding_min_rows=20", "train.batch_size=32", *_TRAINS, *_SHORT],
    ],
}
# Facts about the generated data that plans of all kinds of models need.
FACTS = SimpleNamespace(vocab_size=VOCAB, classes=3, dense_features=2, table_rows=(*CLICK_TABLES,))


def make_corpus(folder: Path, train_tokens: int = 6000, valid_tokens: int = 700) -> Path:
    """A corpus of sequences that count upwards by a varying step, in data_prep's format."""
    random = np.random.default_rng(0)
    splits = {}
    for name, count in (("train", train_tokens), ("valid", valid_tokens)):
        tokens = (np.repeat(random.integers(1, 4, count // 20 + 1), 20)[:count].cumsum() % VOCAB).astype("<u2")
        (folder / name).mkdir(parents=True)
        file = f"{name}/00000.bin"
        tokens.tofile(folder / file)
        shard = {"file": file, "tokens": count, "documents": 1, "bytes": 3 * count, "sha256": digest(folder / file)}
        splits[name] = {"tokens": count, "documents": 1, "bytes": 3 * count, "shards": [shard]}
    (folder / "tokenizer.model").write_bytes(b"generated")
    manifest = {
        "format": 1,
        "dtype": "uint16",
        "vocab_size": VOCAB,
        "eos_id": 0,
        "tokenizer": {"file": "tokenizer.model", "sha256": digest(folder / "tokenizer.model")},
        "source": "generated",
        "splits": splits,
        "skipped": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def make_pairs(folder: Path, rows: int = 300) -> Path:
    """Pairs of sequences that count upwards, each by its own step; the label tells which step is larger."""
    columns = {
        "tokens": Column("<u2"),
        "first_end": Column("<i8"),
        "second_end": Column("<i8"),
        "labels": Column("<i2"),
    }
    target, random = ColumnFolder(folder, "pairs", columns, ["train", "valid"], {}), np.random.default_rng(1)
    with target.writing():
        for split in ("train", "valid"):
            steps, lengths = random.integers(1, 4, (rows, 2)), random.integers(2, 8, (rows, 2))
            texts = [
                (4 + random.integers(VOCAB) + step * np.arange(length)) % VOCAB + 4
                for step, length in zip(steps.flatten(), lengths.flatten(), strict=True)
            ]
            ends = lengths.flatten().cumsum()
            labels = np.sign(steps[:, 0] - steps[:, 1]) + 1
            entries = {"first_end": ends[::2], "second_end": ends[1::2], "labels": labels}
            target.append(split, {"tokens": np.concatenate(texts), **entries})
        files = {name: _npy(np.ones(VOCAB + 4, dtype=bool)) for name in ("word_starts.npy", "word_ends.npy")}
        files["tokenizer.model"] = b"generated"
        tokenizer = {"file": "tokenizer.model", "sha256": hashlib.sha256(b"generated").hexdigest()}
        facts = {"vocab_size": VOCAB + 4, "labels": ["less", "equal", "more"], "tokenizer": tokenizer}
        target.publish(facts, files)
    return folder


def make_clicks(folder: Path, rows: int = 600) -> Path:
    """Rows of two numbers and three categories; the click depends on the first number and the first category."""
    columns = {"dense": Column("<f4", 2), "categories": Column("<i4", 3), "labels": Column("|i1")}
    target, random = ColumnFolder(folder, "clicks", columns, ["train", "valid"], {}), np.random.default_rng(2)
    with target.writing():
        for split in ("train", "valid"):
            dense = random.standard_normal((rows, 2))
            categories = np.stack([random.integers(0, size, rows) for size in CLICK_TABLES], axis=1)
            labels = dense[:, 0] + categories[:, 0] % 3 - 1 + 0.3 * random.standard_normal(rows) > 0
            target.append(split, {"dense": dense, "categories": categories, "labels": labels})
        facts = {"dense": ["x", "y"], "categories": ["a", "b", "c"], "table_rows": CLICK_TABLES}
        target.publish(facts)
    return folder


def with_manifest(folder: Path, copy: Path, tokenizer: bytes | None = None, words: bytes | None = None, **changes):
    """A copy of prepared data with another tokenizer or dictionaries; `changes` of its manifest, None removes a key."""
    shutil.copytree(folder, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    for name, content in (("tokenizer.model", tokenizer), ("words.json", words)):
        if content is not None:
            (copy / name).write_bytes(content)
            if "files" in manifest:
                manifest["files"][name] = digest(copy / name)
    if tokenizer is not None:
        manifest["tokenizer"]["sha256"] = digest(copy / "tokenizer.model")
    kept = {key: value for key, value in (manifest | changes).items() if value is not None}
    (copy / "manifest.json").write_text(json.dumps(kept))
    return copy


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def tiny_run(corpus: Path, directory: Path, name: str, *overrides: str) -> list[str]:
    """Overrides of a run whose steps take milliseconds."""
    return [f"data.corpus={corpus}", f"run.directory={directory}", f"run.name={name}", *TINY, *overrides]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(**extra: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""} | extra


class Ended(NamedTuple):
    """Exit status of a process (None: it was killed after the timeout), its standard output and standard error."""

    status: int | None
    out: str
    err: str


def run_processes(count: int, scenario: str, timeout: float = 240, **arguments) -> list:
    """Calls `scenario` of distributed/scenarios on `count` processes; returns their results in order of index."""
    ended = end_processes(count, scenario, timeout, **arguments)
    for status, out, err in ended:
        assert status == 0, f"{scenario} failed with {status}:\n{out}\n{err[-4000:]}"
    return [json.loads(one.out.splitlines()[-1]) for one in ended]


def end_processes(count: int, scenario: str, timeout: float = 240, **arguments) -> list[Ended]:
    """Like run_processes, for scenarios that may end their processes: returns how each ended."""
    return end_each([(place, None) for place in _places(count)], scenario, timeout, **arguments)


def end_each(starts: list[tuple[dict, Callable | None]], scenario: str, timeout: float = 240, **arguments):
    """Like end_processes, with the variables of each process, and a function that it calls first."""
    started = Started(starts, scenario, arguments)
    _stop_all_when_one_fails(started.workers)
    return started.ended(timeout)


def start_processes(count: int, scenario: str, arguments: dict) -> "Started":
    """`count` processes that have begun with `scenario` of distributed/scenarios."""
    return Started([(place, None) for place in _places(count)], scenario, arguments)


class Started:
    """Processes that have begun with a scenario: the variables of each, and a function that it calls first."""

    def __init__(self, starts: list[tuple[dict, Callable | None]], scenario: str, arguments: dict):
        self.workers = []
        self._folder = tempfile.TemporaryDirectory()
        for i, (variables, begin) in enumerate(starts):
            start = (scenario, arguments, environment(**variables), self._place(i), begin)
            self.workers.append(_processes().Process(target=_work, args=start))
        for worker in self.workers:
            worker.start()

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self.workers]

    @property
    def launcher_pids(self) -> list[int]:
        """There is no launcher."""
        return []

    @property
    def are_alive(self) -> bool:
        """Whether some process has not ended."""
        return any(worker.exitcode is None for worker in self.workers)

    def ended(self, timeout: float) -> list[Ended]:
        """How each process ended. One that has not after about `timeout` seconds is killed."""
        until = time.monotonic() + timeout
        for worker in self.workers:
            worker.join(max(0.0, until - time.monotonic()))
        ended = [Ended(worker.exitcode, *_read(self._place(i))) for i, worker in enumerate(self.workers)]
        for worker in self.workers:
            if worker.exitcode is None:
                worker.kill()
        self._folder.cleanup()
        return ended

    def _place(self, index: int) -> Path:
        return Path(self._folder.name) / str(index)


def _places(count: int) -> list[dict[str, str]]:
    """The variables of `count` processes on this host."""
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return [shared | {"RANK": str(i), "LOCAL_RANK": str(i)} for i in range(count)]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@cache
def _processes() -> multiprocessing.context.BaseContext:
    """Forks processes from a server that has imported everything: imports take most of the time of a short scenario."""
    context = multiprocessing.get_context("forkserver")
    folders = [str(ROOT / "tests/distributed"), str(ROOT / "tests"), str(ROOT)]
    sys.path += [folder for folder in folders if folder not in sys.path]
    context.set_forkserver_preload(["scenarios", "worker", *IMPORTED_LATE])
    before = dict(os.environ)
    # Some versions of Python do not pass sys.path on to the server, and a failed import there is silent.
    os.environ.update(environment(PYTHONPATH=os.pathsep.join(folders)))
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


def _work(scenario: str, arguments: dict, variables: dict[str, str], place: Path, begin: Callable | None) -> None:
    """Body of a process: writes its output to PLACE.out, the result as the last line, and errors to PLACE.err."""
    for stream, suffix in ((sys.stdout, ".out"), (sys.stderr, ".err")):
        os.dup2(os.open(f"{place}{suffix}", os.O_WRONLY | os.O_CREAT), stream.fileno())
    os.environ.clear()
    os.environ.update(variables)
    if begin is not None:
        begin()
    from worker import work

    work(scenario, arguments)


def _read(place: Path) -> tuple[str, str]:
    files = (Path(f"{place}{suffix}") for suffix in (".out", ".err"))
    return tuple(file.read_text() if file.exists() else "" for file in files)


def _stop_all_when_one_fails(workers: list, patience: float = 5.0) -> None:
    """Kills the others `patience` seconds after one has failed, as a launcher does: they may wait for it for ever."""

    def watch() -> None:
        while any(worker.exitcode is None for worker in workers):
            if any(worker.exitcode for worker in workers):
                time.sleep(patience)  # for their own messages
                for worker in workers:
                    worker.kill()
            time.sleep(0.1)

    threading.Thread(target=watch, daemon=True).start()


def metrics(directory: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (directory / name / "metrics.jsonl").read_text().splitlines()]


def losses(directory: Path, name: str) -> list[float]:
    return [record["loss"] for record in metrics(directory, name)]


def saved_tensors(directory: Path, name: str, step: int) -> dict:
    """Every tensor of a checkpoint, by `kind/parameter`."""
    from safetensors.torch import load_file

    folder = directory / name / "checkpoints" / f"step_{step:07d}"
    tensors = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(shard)
    return tensors


def cut_back(directory, name, copy, step):
    """Copies a run as a kill after `step` leaves it: later checkpoints gone, later log lines kept. Returns `copy`."""
    shutil.copytree(directory / name, directory / copy)
    (directory / copy / "summary.json").unlink()
    for folder in (directory / copy / "checkpoints").glob("step_*"):
        if int(folder.name[5:]) > step:
            shutil.rmtree(folder)
    (directory / copy / "checkpoints/LATEST").write_text(f"step_{step:07d}\n")
    with (directory / copy / "metrics.jsonl").open("a") as log:
        log.write('{"step": 21, "cut sh')
    return copy
