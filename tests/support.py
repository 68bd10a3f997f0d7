"""Helpers of many tests: generated data of every kind, and tiny runs on them."""

import hashlib
import io
import json
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

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
    "masked_lm": [*_ENCODER, "model.head=masked_lm", "model.norm=pre", "model.output_bias=true"],
    "dlrm": [
        *["model.kind=dlrm", "model.embedding_dim=8", "model.bottom=[48]", "model.top=[64]", "model.format=tensor"],
        *["tensor.embedding_rank=3", "tensor.embedding_min_rows=20", "train.batch_size=32", *_TRAINS, *_SHORT],
    ],
}
# Facts about the generated data that plans of all kinds of models need.
FACTS = SimpleNamespace(vocab_size=VOCAB, classes=3, dense_features=2, table_rows=(*CLICK_TABLES,))


def make_corpus(folder: Path, train_tokens: int = 6000, valid_tokens: int = 300) -> Path:
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


def make_pairs(folder: Path, rows: int = 300, valid_rows: int = 60) -> Path:
    """Pairs of sequences that count upwards, each by its own step; the label tells which step is larger."""
    columns = {
        "tokens": Column("<u2"),
        "first_end": Column("<i8"),
        "second_end": Column("<i8"),
        "labels": Column("<i2"),
    }
    target, random = ColumnFolder(folder, "pairs", columns, ["train", "valid"], {}), np.random.default_rng(1)
    with target.writing():
        for split, count in {"train": rows, "valid": valid_rows}.items():
            steps, lengths = random.integers(1, 4, (count, 2)), random.integers(2, 8, (count, 2))
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


def make_answers(folder: Path, rows: int = 200) -> Path:
    """Prompts of random tokens, each answered by its first tokens in reverse order; EOS is 0."""
    columns = {"tokens": Column("<u2"), "prompt_end": Column("<i8"), "answer_end": Column("<i8")}
    target, random = ColumnFolder(folder, "answers", columns, ["train", "valid"], {}), np.random.default_rng(3)
    counts = {}
    with target.writing():
        for split in ("train", "valid"):
            prompts = [random.integers(1, VOCAB, length) for length in random.integers(2, 9, rows)]
            answers = [prompt[: random.integers(1, 6)][::-1] for prompt in prompts]
            lengths = np.array([[len(p), len(a)] for p, a in zip(prompts, answers, strict=True)])
            ends = lengths.flatten().cumsum()
            tokens = np.concatenate([part for pair in zip(prompts, answers, strict=True) for part in pair])
            target.append(split, {"tokens": tokens, "prompt_end": ends[::2], "answer_end": ends[1::2]})
            written = int(lengths[:, 1].sum())
            counts[split] = {"examples": rows, "targets": written + rows, "bytes": 3 * written}
        tokenizer = {"file": "tokenizer.model", "sha256": hashlib.sha256(b"generated").hexdigest()}
        facts = {"vocab_size": VOCAB, "eos_id": 0, "template": "{prompt}{response}", "counts": counts}
        target.publish(facts | {"tokenizer": tokenizer}, {"tokenizer.model": b"generated"})
    return folder


def make_clicks(folder: Path, rows: int = 600, valid_rows: int = 160) -> Path:
    """Rows of two numbers and three categories; the click depends on the first number and the first category."""
    columns = {"dense": Column("<f4", 2), "categories": Column("<i4", 3), "labels": Column("|i1")}
    target, random = ColumnFolder(folder, "clicks", columns, ["train", "valid"], {}), np.random.default_rng(2)
    with target.writing():
        for split, count in {"train": rows, "valid": valid_rows}.items():
            dense = random.standard_normal((count, 2))
            categories = np.stack([random.integers(0, size, count) for size in CLICK_TABLES], axis=1)
            labels = dense[:, 0] + categories[:, 0] % 3 - 1 + 0.3 * random.standard_normal(count) > 0
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
    """Overrides of a run whose steps take milliseconds: one block, as each costs a third of the time."""
    place = [f"data.corpus={corpus}", f"run.directory={directory}", f"run.name={name}"]
    return [*place, *TINY, "model.layers=1", *overrides]


def mixture_of(weights: dict) -> str:
    """The override for a mixture of the corpora in these folders."""
    listed = (f"{{corpus: {folder}, weight: {weight}}}" for folder, weight in weights.items())
    return f"data.mixture=[{', '.join(listed)}]"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(**extra: str) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""} | extra


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


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
