"""Exported models in transformers against ours, for every format of weights."""

import ast
import json
from types import SimpleNamespace

import pytest
import torch
from support import TINY
from text_corpus import VOCAB

from comera_dist.config.reader import read_config
from comera_dist.data.tasks import open_task
from comera_dist.errors import ConfigError
from comera_dist.exchange.hugging_face import write_hugging_face
from comera_dist.formats.removed import RemovedPlan
from comera_dist.models.family import build_model, plan_model
from comera_dist.run.trained import Trained

transformers = pytest.importorskip("transformers", reason="transformers reads what is exported")

SHARED = "model.format={rest: shared, embedding: dense, head: dense}"
DECODERS = {
    "dense": ["model.format=dense"],
    "tensor train": [],
    "tied tensor train": ["model.tie_embeddings=true", "tensor.order=3"],
    "low rank": ["model.format=low_rank"],
    "tied low rank": ["model.format=low_rank", "model.tie_embeddings=true"],
    "block train": ["model.format=block_train"],
    "mixed dimension": ["model.format.embedding=mixed_dimension", "model.format.head=mixed_dimension"],
    "tied mixed dimension": ["model.format=mixed_dimension", "model.tie_embeddings=true"],
    "tied dense": ["model.format=dense", "model.tie_embeddings=true"],
    "grouped-query": ["model.kv_heads=1", "model.rope_theta=500", "model.norm_eps=1e-3"],
    "bottleneck": ["model.format.attention=bottleneck", "model.format.mlp=bottleneck"],
    "shared": [SHARED, "model.layers=3", "tensor.shared.matrices=2"],
    "gated": ["model.format=dense", "model.gated_attention=true", "model.kv_heads=1"],
    "gated tensor train": ["model.gated_attention=true"],
}
WITH_CODE = ("bottleneck", "gated", "gated tensor train")  # also without --keep-factors
ENCODER = [
    *("model.kind=encoder", "model.d_model=16", "model.layers=2", "model.heads=2", "model.d_ff=24"),
    *("model.positions=32", "model.norm_eps=1e-3", "data.seq_len=32", "train.batch_size=8", "train.steps=1"),
    *("tensor.order=2", "tensor.rank=4", "tensor.outer_rank=4", "tensor.embedding_order=2", "tensor.embedding_rank=4"),
]
ENCODERS = {
    "dense": ["model.format=dense"],
    "tensor train": [],
    "shared": [SHARED],
    "bottleneck": ["model.format.mlp=bottleneck", "model.format.head=bottleneck", "model.format.embedding=low_rank"],
}
both = pytest.mark.parametrize("keeps_factors", [False, True], ids=["dense", "factors"])


def trained(corpus, *overrides, removed=(), noise=0.2):
    """A model with random numbers added everywhere: no gate, norm or bias is at the value that changes nothing."""
    config = read_config(None, [*overrides, f"data.corpus={corpus}"])
    task = open_task(config)
    plan = plan_model(config, task.facts)
    plan |= {name: RemovedPlan(plan[name].inputs, plan[name].outputs) for name in removed}
    generator = torch.Generator().manual_seed(2)
    model = build_model(config.model, plan, generator)
    for parameter in model.parameters():
        parameter.data += noise * torch.randn(parameter.shape, generator=generator)
    checkpoint = SimpleNamespace(run={"cursor": {"fingerprint": task.fingerprint}})
    return Trained(config, plan, checkpoint, model.eval())


def exported(found, folder, keeps_factors):
    """The model as transformers loads it; every weight must be found, and none be left over."""
    folder.mkdir()
    name = write_hugging_face(found, folder, keeps_factors)
    auto = getattr(transformers, f"AutoModel{name.partition('For')[1]}{name.partition('For')[2]}")
    model, told = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert not any(told.values()), told
    assert type(model).__name__ == name
    return model.eval()


def stored_numbers(folder):
    """Numbers in the file of weights."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118 (it is no dict)


@both
@pytest.mark.parametrize("kind", DECODERS)
def test_logits_of_a_decoder_are_ours(text_corpus, tmp_path, kind, keeps_factors):
    # Adaptation removes layers with ranks, never one whose matrix other blocks use.
    removed = [] if kind == "shared" else ["model.layers.0.mlp.up_proj"]
    found = trained(text_corpus, *TINY, *DECODERS[kind], removed=removed)
    tokens = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, numbers = found.model(tokens), sum(p.numel() for p in found.model.parameters())
        model = exported(found, tmp_path / "out", keeps_factors)
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-5, atol=1e-5)
    assert expected.var(1).mean() > 0.01  # positions differ by far more than the tolerance
    has_code = keeps_factors or kind in WITH_CODE
    assert (tmp_path / "out/modeling_comera.py").exists() == has_code
    if keeps_factors:
        assert stored_numbers(tmp_path / "out") == numbers


def test_a_format_without_code_of_its_own_is_exported_dense(text_corpus, tmp_path):
    found = trained(text_corpus, *TINY, "model.format={rest: sltrain, embedding: dense}")
    tokens = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = found.model(tokens)
        model = exported(found, tmp_path / "out", keeps_factors=True)
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-5, atol=1e-5)
    assert not (tmp_path / "out/modeling_comera.py").exists()


def rows_of_pairs():
    """Tokens (5, 12), of which the last ones of a row are padding, their types, and places (5, 2)."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 300, (5, 12), generator=generator)
    for row in range(5):
        tokens[row, 4 + 2 * row :] = 0
    return tokens, torch.randint(2, (5, 12), generator=generator), torch.randint(4, (5, 2), generator=generator)


@both
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("head", ["masked_lm", "classification"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_logits_of_an_encoder_are_ours(pair_corpus, tmp_path, kind, head, norm, keeps_factors):
    overrides = [*ENCODER, *ENCODERS[kind], f"model.head={head}", f"model.norm={norm}"]
    overrides += ["model.output_bias=true" if head == "masked_lm" else "model.classes=4"]
    found = trained(pair_corpus, *overrides, removed=["bert.encoder.layer.1.attention.self.key"], noise=0.3)
    tokens, types, places = rows_of_pairs()
    inputs = (tokens, types, places) if head == "masked_lm" else (tokens, types)
    with torch.no_grad():
        expected = found.model(*inputs)
        model = exported(found, tmp_path / "out", keeps_factors)
        logits = model(tokens, attention_mask=(tokens != 0).long(), token_type_ids=types).logits
        if head == "masked_lm":
            logits = logits.take_along_dim(places[..., None], dim=1)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert expected.flatten(0, -2).var(0).mean() > 0.01  # rows differ by far more than the tolerance
    if head == "classification":
        assert list(model.config.id2label.values()) == ["more", "much", "same", "LABEL_3"]
    assert ("MegatronBert" in type(model).__name__) == (norm == "pre")


def test_gates_follow_a_cache_of_keys_and_values(text_corpus, tmp_path):
    model = exported(trained(text_corpus, *TINY, *DECODERS["gated"]), tmp_path / "out", False)
    prompt = torch.randint(VOCAB, (2, 5), generator=torch.Generator().manual_seed(1))
    cached, anew = (
        model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0, use_cache=use)
        for use in (True, False)
    )
    assert torch.equal(cached, anew)
    assert cached.shape == (2, 11)


@pytest.mark.parametrize("kind", ["tied low rank", "gated"])
def test_code_of_ours_can_be_trained_and_saved_again(text_corpus, tmp_path, kind):
    found = trained(text_corpus, *TINY, *DECODERS[kind])
    model = exported(found, tmp_path / "out", True)
    tokens = torch.arange(12)[None]
    model(tokens, labels=tokens).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.save_pretrained(tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True)
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits)


def test_code_of_exported_models_needs_torch_and_transformers_alone(text_corpus, tmp_path):
    exported(trained(text_corpus, *TINY), tmp_path / "out", True)
    files = list((tmp_path / "out").glob("*.py"))
    assert {file.name for file in files} == {"modeling_comera.py", "comera_layers.py"}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module] if node.level == 0 else []
            roots = {name.partition(".")[0] for name in names}
            assert roots <= {"torch", "transformers", "collections", "functools", "typing"}


def test_a_dense_folder_is_as_others_have_it(text_corpus, tmp_path):
    exported(trained(text_corpus, *TINY, "model.rope_theta=777"), tmp_path / "out", False)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    files = ("config", "generation_config", "tokenizer", "tokenizer_config")
    assert names == {*(f"{name}.json" for name in files), "model.safetensors", "tokenizer.model"}
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 777
    assert config["max_position_embeddings"] == 16


def test_without_trust_in_its_code_a_folder_of_factors_is_refused(text_corpus, tmp_path):
    exported(trained(text_corpus, *TINY), tmp_path / "out", True)
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=False)


def test_a_model_that_transformers_lacks_is_refused(tmp_path):
    config = SimpleNamespace(model=SimpleNamespace(kind="dlrm"))
    with pytest.raises(ConfigError, match=r"model.kind = dlrm; export with --to tensors"):
        write_hugging_face(SimpleNamespace(config=config, plan={}), tmp_path, False)


def test_a_part_that_llama_lacks_is_refused(text_corpus, tmp_path):
    reason = "model.bigram_rows = 50 and LLaMA has no table of pairs of tokens; export with --to tensors"
    with pytest.raises(ConfigError, match=reason):
        exported(trained(text_corpus, *TINY, "model.bigram_rows=50"), tmp_path / "out", True)
    assert not any((tmp_path / "out").iterdir())
