"""The encoder against BERT as its reference implementation computes it, and tensorized against dense."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from comera_dist.config import Optim
from comera_dist.errors import ConfigError
from comera_dist.models.encoder import EncoderClassifier
from comera_dist.models.encoder_plan import DENSE, EncoderFormats, EncoderShape, plan_encoder
from comera_dist.optim import parameter_groups
from comera_dist.tensor.convert import TTMPlan, TTPlan, densify
from comera_dist.tensor.linear import TTLinear

SHAPE = EncoderShape(
    vocab_size=50, d_model=16, d_ff=24, heads=4, layers=2, positions=12, token_types=2, classes=3, norm_eps=1e-3,
    dropout=0.0,
)  # fmt: skip
TRAIN = TTPlan(order=2, rank=4)
TENSOR = EncoderFormats(
    word_embeddings=TTMPlan(order=2, rank=4), attention=TRAIN, intermediate=TRAIN, output=TRAIN, pooler=TRAIN
)


def build(formats=TENSOR, shape=SHAPE, seed=0):
    return EncoderClassifier(shape, plan_encoder(shape, formats), torch.Generator().manual_seed(seed))


def shaken(model):
    """The model with random numbers added everywhere: no gate, bias or norm is at the value that changes nothing."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
    return model


def padded_batch():
    """Sequences of 9, 6, 1 and 0 tokens in a batch (4, 9), and their token types."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, SHAPE.vocab_size, (4, 9), generator=generator)
    for row, length in enumerate([9, 6, 1, 0]):
        tokens[row, length:] = 0
    return tokens, torch.randint(2, (4, 9), generator=generator)


def reference_of(model, dropout=0.0, attention="eager"):
    """BertForSequenceClassification with the weights of the model's dense twin, whose names must be exactly its own."""
    transformers = pytest.importorskip("transformers", reason="transformers is the reference of BERT's details")
    config = transformers.BertConfig(
        vocab_size=SHAPE.vocab_size,
        hidden_size=SHAPE.d_model,
        intermediate_size=SHAPE.d_ff,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        max_position_embeddings=SHAPE.positions,
        type_vocab_size=SHAPE.token_types,
        num_labels=SHAPE.classes,
        layer_norm_eps=SHAPE.norm_eps,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    reference = transformers.BertForSequenceClassification(config)
    reference.load_state_dict(densify(deepcopy(model)).state_dict())
    return reference


def reference_logits(reference, tokens, token_types=None):
    mask = (tokens != 0).long()
    mask[:, 0] = 1
    return reference(tokens, attention_mask=mask, token_type_ids=token_types).logits


@pytest.mark.parametrize("formats", [DENSE, TENSOR], ids=["dense", "tensor"])
@pytest.mark.parametrize("typed", [True, False])
def test_logits_and_loss_are_those_of_bert(formats, typed):
    model = shaken(build(formats))
    tokens, token_types = padded_batch()
    token_types = token_types if typed else None
    with torch.no_grad():
        logits = model(tokens, token_types_BS=token_types)
        expected = reference_logits(reference_of(model).eval(), tokens, token_types)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        assert logits.var(0).sum() > 0.01  # sequences differ by far more than the tolerance
        labels = torch.tensor([0, 2, -100, 1])
        loss = F.cross_entropy(expected, labels, reduction="sum")
        torch.testing.assert_close(model(tokens, labels, token_types), loss, rtol=1e-4, atol=1e-4)


def test_dropout_is_where_bert_has_it():
    """The same seed drops the same numbers, where both draw in the same order."""
    model = build(DENSE, replace(SHAPE, dropout=0.3)).train()
    reference = reference_of(model, dropout=0.3, attention="sdpa").train()
    tokens, _ = padded_batch()
    torch.manual_seed(5)
    found = model(tokens)
    torch.manual_seed(5)
    torch.testing.assert_close(found, reference_logits(reference, tokens), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))


def test_tensorized_is_its_densified_twin():
    model = shaken(build())
    twin = densify(deepcopy(model))
    assert not any(isinstance(module, TTLinear) for module in twin.modules())
    tokens, token_types = padded_batch()
    losses = [m(tokens, torch.tensor([0, 2, -100, 1]), token_types) for m in (model, twin)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    shared = [name for name, _ in twin.named_parameters() if name in dict(model.named_parameters())]
    assert any("LayerNorm" in name for name in shared)
    assert any("query.bias" in name for name in shared)
    gradients = [
        torch.autograd.grad(loss, [m.get_parameter(name) for name in shared])
        for loss, m in zip(losses, (model, twin), strict=True)
    ]
    for ours, dense in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-3, atol=1e-4)


def test_padding_changes_nothing():
    model = shaken(build())
    tokens, token_types = padded_batch()
    with torch.no_grad():
        together = model(tokens, token_types_BS=token_types)
        for row, length in enumerate([9, 6, 1]):
            alone = model(tokens[row : row + 1, :length], token_types_BS=token_types[row : row + 1, :length])
            torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-5)


def test_a_row_that_only_fills_up_the_batch_does_no_harm():
    tokens, _ = padded_batch()
    labels = torch.tensor([0, 2, 1, -100])
    model = shaken(build())
    gradients = [torch.autograd.grad(model(tokens[:rows], labels[:rows]), list(model.parameters())) for rows in (3, 4)]
    for without, with_row in zip(*gradients, strict=True):
        torch.testing.assert_close(without, with_row, rtol=1e-4, atol=1e-5)


def test_a_removed_layer_leaves_its_bias():
    shape, plan = SHAPE, plan_encoder(SHAPE, TENSOR)
    names = ["bert.encoder.layer.0.attention.self.key", "bert.encoder.layer.1.output.dense", "bert.pooler.dense"]
    removed = {n: p.with_ranks([0] * len(p.shape.bonds)) if n in names else p for n, p in plan.items()}
    model = shaken(EncoderClassifier(shape, removed, torch.Generator().manual_seed(0)))
    twin = EncoderClassifier(shape, plan, generator=None)
    twin.load_state_dict({**twin.state_dict(), **model.state_dict()})
    for name in names:
        for core in twin.get_submodule(name).cores:
            torch.nn.init.zeros_(core)
    tokens, token_types = padded_batch()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, None, token_types), twin(tokens, None, token_types))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(tokens, torch.tensor([0, 2, 1, -100]))
    assert loss.dtype == torch.float32
    assert all(g is not None for g in torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("formats", [DENSE, TENSOR], ids=["dense", "tensor"])
def test_it_learns(formats):
    """The class is the second token's remainder by 3, among random tokens of random lengths."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, SHAPE.vocab_size, (64, 8), generator=generator)
    tokens[torch.arange(8) >= torch.randint(3, 9, (64, 1), generator=generator)] = 0
    labels = tokens[:, 1] % 3
    model = build(formats)
    optimizer = torch.optim.AdamW(parameter_groups(model, Optim(lr=1e-2)))
    losses = []
    for _ in range(40):
        loss = model(tokens, labels) / len(labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(3.0).log().item(), abs=0.05)
    assert losses[-1] < 0.5 * losses[0]


def test_same_seed_same_weights():
    first, again, other = (dict(build(seed=s).named_parameters()) for s in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["bert.pooler.dense.core_1"], other["bert.pooler.dense.core_1"])
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@pytest.mark.parametrize("formats", [DENSE, TENSOR], ids=["dense", "tensor"])
def test_every_matrix_starts_at_the_size_of_berts(formats):
    model = densify(build(formats))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.square().mean().sqrt().item() == pytest.approx(0.02, rel=0.35), name
        else:
            assert torch.all(parameter == (1.0 if name.endswith("LayerNorm.weight") else 0.0)), name


def test_a_model_without_a_generator_draws_no_train_and_is_there_to_be_loaded(monkeypatch):
    model = shaken(build())
    monkeypatch.setattr("comera_dist.tensor.linear.random_tt_cores", None)
    monkeypatch.setattr("comera_dist.tensor.embedding.random_ttm_cores", None)
    empty = EncoderClassifier(SHAPE, plan_encoder(SHAPE, TENSOR), generator=None)
    empty.load_state_dict(model.state_dict())
    tokens, _ = padded_batch()
    assert torch.equal(empty(tokens), model(tokens))


def test_only_matrices_decay():
    model = build()
    groups = {group["name"]: group["params"] for group in parameter_groups(model, Optim())}
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(names[id(p)].endswith("bias") or "LayerNorm" in names[id(p)] for p in groups["no_decay"])
    dense = {names[id(p)] for p in groups["dense"]}
    assert dense == {
        "bert.embeddings.position_embeddings.weight",
        "bert.embeddings.token_type_embeddings.weight",
        "classifier.weight",
    }


def test_a_sequence_longer_than_the_positions_is_an_error():
    with pytest.raises(ConfigError, match="13 tokens was found, but the model has 12 positions"):
        build()(torch.ones(1, 13, dtype=torch.int64))
