"""What many tests need: a corpus of generated tokens, a tiny run on it, and runs on several processes."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

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
    "wandb.mode=disabled",
]


def make_corpus(folder: Path, train_tokens: int = 6000, valid_tokens: int = 700) -> Path:
    """A corpus of sequences that count upwards by a varying step, in the form that data_prep writes."""
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


def tiny_run(corpus: Path, directory: Path, name: str, *overrides: str) -> list[str]:
    """Overrides of a run that takes milliseconds a step."""
    return [f"data.corpus={corpus}", f"run.directory={directory}", f"run.name={name}", *TINY, *overrides]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(**extra: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""} | extra


def run_processes(count: int, scenario: str, timeout: float = 240, **arguments) -> list:
    """Calls `scenario` of distributed/scenarios.py on `count` processes; returns what each returned, in order."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, str(ROOT / "tests/distributed/worker.py"), scenario, json.dumps(arguments)]
    workers = [
        subprocess.Popen(
            command,
            env=environment(
                RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=port
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]
    _stop_all_when_one_fails(workers)
    outputs = [worker.communicate(timeout=timeout) for worker in workers]
    for worker, (out, err) in zip(workers, outputs, strict=True):
        assert worker.returncode == 0, f"{scenario} failed:\n{out}\n{err[-4000:]}"
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def _stop_all_when_one_fails(workers: list[subprocess.Popen], patience: float = 5.0) -> None:
    """As a launcher does: processes whose partner is gone may wait for it for ever."""

    def watch() -> None:
        while any(worker.poll() is None for worker in workers):
            if any(worker.poll() for worker in workers):
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
    """A copy of a run as a kill after `step` leaves it: later checkpoints gone, later log lines still there."""
    shutil.copytree(directory / name, directory / copy)
    (directory / copy / "summary.json").unlink()
    for folder in (directory / copy / "checkpoints").glob("step_*"):
        if int(folder.name[5:]) > step:
            shutil.rmtree(folder)
    (directory / copy / "checkpoints/LATEST").write_text(f"step_{step:07d}\n")
    with (directory / copy / "metrics.jsonl").open("a") as log:
        log.write('{"step": 21, "cut sh')
    return copy
