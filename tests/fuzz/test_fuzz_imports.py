"""Folders of transformers' models of any content: the model that transformers computes too, or one sentence."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import SIZES, SMALLER, in_transformers, saved_models, take
from hypothesis import strategies as st
from inputs import fuzzed, replaced
from mutations import ODD_PATHS, changed_bytes, changed_json, changed_trees, odd_values
from safetensors.torch import load_file, save_file
from support import digest
from test_fuzz_prepared_data import with_hash

from comera_dist.exchange.foreign_files import INDEX, SETTINGS, WEIGHTS

models = st.sampled_from(["llama", "bert"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Every input changes these folders, and all is put back."""
    return saved_models(tmp_path_factory.mktemp("imports"))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_what_was_not_changed_is_imported(saved, name):
    assert in_transformers(saved[name]) is not None
    take(saved[name])
    take(saved[name], params=SMALLER[name])


@fuzzed("model of transformers: tree of config.json", 160, name=models, data=st.data())
def test_any_tree_of_a_configuration(saved, name, data):
    file = saved[name].folder / SETTINGS
    with replaced({file: data.draw(changed_json(json.loads(file.read_bytes())))}):
        take(saved[name])


READ = {  # keys that decide what a model computes
    "llama": [
        *SIZES,
        *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "rope_theta", "rope_scaling"),
        *("tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias", "model_type"),
    ],
    "bert": [
        *SIZES,
        *("max_position_embeddings", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob", "id2label"),
        *("hidden_act", "is_decoder", "architectures", "problem_type", "position_embedding_type", "model_type"),
    ],
}
ROPE = [{"type": "linear", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_theta": 9.0}]
ROPE += [{"rope_type": "default", "rope_theta": 0}, {"type": "default", "rope_theta": 500.0}]
LABELLED = [{"0": "more", "1": "less"}, {"0": "less", "1": "less"}, {"0": ["less"], "1": "more"}, {"7": "less"}]


@fuzzed(
    "model of transformers: value in config.json",
    200,
    name=models,
    value=odd_values | st.integers(1, 24) | st.sampled_from([*ROPE, *LABELLED, 10**9, 4096, "gelu", "1e-6"]),
    data=st.data(),
)
def test_any_value_in_a_configuration(saved, name, value, data):
    file = saved[name].folder / SETTINGS
    settings = json.loads(file.read_bytes())
    key = data.draw(st.sampled_from(READ[name]))
    if data.draw(st.booleans()):
        settings.pop("head_dim", None)
    with replaced({file: json.dumps({**settings, key: value}).encode()}):
        take(saved[name])


def text_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.iterdir()) if file.suffix == ".json"]


@fuzzed("model of transformers: bytes of a JSON file", 100, name=models, data=st.data())
def test_any_bytes_of_a_json_file(saved, name, data):
    file = data.draw(st.sampled_from(text_files(saved[name].folder)))
    with replaced({file: data.draw(changed_bytes(file.read_bytes()))}):
        take(saved[name])


@fuzzed("model of transformers: tree of the index", 100, data=st.data())
def test_any_tree_of_an_index(saved, data):
    file = saved["llama"].folder / INDEX
    with replaced({file: data.draw(changed_json(json.loads(file.read_bytes())))}):
        take(saved["llama"])


@fuzzed("model of transformers: file names in the index", 60, name=odd_values | st.sampled_from(ODD_PATHS))
def test_any_file_name_in_an_index(saved, name):
    file = saved["llama"].folder / INDEX
    index = json.loads(file.read_bytes())
    index["weight_map"] = {**index["weight_map"], "lm_head.weight": name}
    with replaced({file: json.dumps(index).encode()}):
        take(saved["llama"])


def weights_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@fuzzed("model of transformers: bytes of weights", 100, name=models, data=st.data())
def test_any_bytes_of_weights(saved, name, data):
    """Changed weights are other weights: what is read must be what transformers reads."""
    file = data.draw(st.sampled_from(weights_in(saved[name].folder)))
    whole = file.read_bytes()
    end = data.draw(st.sampled_from([8 + int.from_bytes(whole[:8], "little"), len(whole)]))
    with replaced({file: data.draw(changed_bytes(whole[:end])) + whole[end:]}):
        take(saved[name])


SHAPES = st.lists(st.sampled_from([0, 1, 2, 8, 12, 2**31, 2**62, 2**64 - 1, 10**9]), max_size=4)
TYPES = ["F64", "F32", "F16", "BF16", "I32", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "I64", "X"]


@fuzzed(
    "model of transformers: header of weights",
    160,
    name=models,
    shape=st.none() | SHAPES,
    kind=st.sampled_from([*TYPES, None, None]),
    size=st.sampled_from([None] * 6 + [0, 1, 2**31, 2**63, 2**64 - 1, 100_000_001]),
    data=st.data(),
)
def test_any_header_of_weights(saved, name, shape, kind, size, data):
    file = data.draw(st.sampled_from(weights_in(saved[name].folder)))
    whole = file.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:end])
    tensor = header[data.draw(st.sampled_from(sorted(header.keys() - {"__metadata__"})))]
    tensor |= {} if shape is None else {"shape": shape}
    tensor |= {} if kind is None else {"dtype": kind}
    written = data.draw(st.just(json.dumps(header).encode()) | changed_json(header))
    with replaced({file: (len(written) if size is None else size).to_bytes(8, "little") + written + whole[end:]}):
        take(saved[name])


VALUES = [0.0, 1.0, 1e-30, 1e4, 1e19, 3e38, float("nan"), float("inf")]


@fuzzed(
    "model of transformers: odd weights",
    100,
    name=models,
    value=st.sampled_from(VALUES),
    kind=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool]),
    compressed=st.booleans(),
    data=st.data(),
)
def test_any_weights(saved, name, value, kind, compressed, data):
    file = data.draw(st.sampled_from(weights_in(saved[name].folder)))
    tensors, before = load_file(file), file.read_bytes()
    key = data.draw(st.sampled_from(sorted(tensors)))
    tensors[key] = tensors[key].masked_fill(torch.rand(tensors[key].shape) < 0.5, value).to(kind)
    try:
        save_file(tensors, file, {"format": "pt"})
        take(saved[name], params=SMALLER[name] if compressed else None)
    finally:
        file.write_bytes(before)


@fuzzed("model of transformers: tokenizer.json", 120, name=models, data=st.data())
def test_any_tokenizer(saved, name, data):
    """The data name it by its hash, as if it had been there when they were made."""
    model = saved[name]
    theirs, ours = model.folder / "tokenizer.json", model.corpus / "tokenizer.json"
    tree = json.loads(ours.read_bytes())
    part = data.draw(st.sampled_from(sorted(tree)))
    tree[part] = data.draw(changed_trees({part: tree[part]})).get(part)
    content = data.draw(st.just(json.dumps(tree).encode()) | changed_bytes(ours.read_bytes()))
    with replaced({theirs: content, **with_hash(model.corpus, ours, content)}):
        assert digest(theirs) == digest(ours)
        take(model)


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(MARK),)


MARK = Path("code_was_run")
CODE = f"import os\nos.mkdir({str(MARK)!r})\n".encode()


@contextmanager
def instead(file: Path, kind: str, elsewhere: Path):
    """While entered, `file` is missing, or something else than a file of its own."""
    content = file.read_bytes() if file.exists() else None
    file.unlink(missing_ok=True)
    makers = {
        "nothing": lambda: None,
        "folder": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
        "device": lambda: file.symlink_to("/dev/zero"),
        "loop": lambda: file.symlink_to(file.name),
        "link to nothing": lambda: file.symlink_to("nothing"),
        "link to a file elsewhere": lambda: file.symlink_to(elsewhere),
        "code": lambda: file.write_bytes(CODE),
        "pickle": lambda: torch.save(Bomb(), file),
    }
    try:
        makers[kind]()
        yield
    finally:
        file.rmdir() if kind == "folder" else file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)


KINDS = ["nothing", "folder", "pipe", "device", "loop", "link to nothing", "link to a file elsewhere", "code", "pickle"]
EXTRA = ["tokenizer.model", "pytorch_model.bin", "modeling_x.py", "tokenizer_config.json", INDEX, WEIGHTS, "adapter"]


@fuzzed(
    "model of transformers: missing, odd and more files", 120, name=models, kind=st.sampled_from(KINDS), data=st.data()
)
def test_any_kind_of_file(saved, name, kind, data):
    """A link elsewhere is followed, as the hub's own cache is made of links; nothing else may end in a wait."""
    folder = saved[name].folder
    file = folder / data.draw(st.sampled_from(sorted({*EXTRA, *(path.name for path in folder.iterdir())})))
    elsewhere = folder.parent / "elsewhere"
    shutil.copyfile(file if file.exists() else folder / SETTINGS, elsewhere)
    settings = json.loads((folder / SETTINGS).read_bytes())
    settings["auto_map"] = {"AutoConfig": "modeling_x.X", "AutoModelForCausalLM": "modeling_x.X"}
    with replaced({folder / SETTINGS: json.dumps(settings).encode()}), instead(file, kind, elsewhere):
        take(saved[name], is_safe=False)
    assert not MARK.exists(), "code of the folder was run"
