"""The encoder against BERT and Megatron-BERT as transformers computes them, and tensorized against dense.

Most tests run for both heads; a batch of head masked_lm also has positions to predict.
"""

from copy import deepcopy

import pytest
import torch
from fake_gpu import fake_gpu
from operations import Operations
from torch.nn import functional as F

from comera_dist.config.optim_section import Optim
from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.formats.convert import densify
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.models.encoder.model import count_correct
from comera_dist.models.family import build_model, known_facts, plan_model
from comera_dist.ops.cross_entropy import without_waiting
from comera_dist.ops.dropout import dropout
from comera_dist.optim.groups import parameter_groups

VOCAB, WIDTH, HIDDEN, HEADS, LAYERS, POSITIONS, CLASSES, EPS = 50, 16, 24, 4, 2, 12, 3, 1e-3
SIZES = (
    *("model.kind=encoder", f"model.vocab_size={VOCAB}", f"model.d_model={WIDTH}"),
    *(f"model.d_ff={HIDDEN}", f"model.heads={HEADS}", f"model.layers={LAYERS}", f"model.positions={POSITIONS}"),
    *(f"model.norm_eps={EPS}", "model.dropout=0", "data.seq_len=8", "train.batch_size=4", "train.steps=1"),
    *("tensor.order=2", "tensor.rank=4", "tensor.embedding_order=2", "tensor.embedding_rank=4"),
)
DENSE, PRE, POST = "model.format=dense", "model.norm=pre", "model.norm=post"
CLASSIFY, PREDICT = "model.head=classification", "model.head=masked_lm"
both_heads = pytest.mark.parametrize("head", [CLASSIFY, PREDICT])
both_norms = pytest.mark.parametrize("norm", [POST, PRE])
both_formats = pytest.mark.parametrize("kind", [DENSE, "model.format=tensor"])


def planned(*overrides):
    classes = [f"model.classes={CLASSES}"] * (CLASSIFY in overrides)
    config = read_config(None, [*SIZES, *classes, *overrides])
    return config.model, plan_model(config, known_facts(config))


def build(*overrides, seed=0):
    return build_model(*planned(*overrides), torch.Generator().manual_seed(seed))


def shaken(model):
    """The model with random numbers added everywhere: no gate, bias or norm is at the value that changes nothing."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
    return model


def batch_for(head):
    """Rows of 9, 6, 1 and 0 tokens as (4, 9); the last row fills up the batch, and has no target."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, VOCAB, (4, 9), generator=generator)
    for row, length in enumerate([9, 6, 1, 0]):
        tokens[row, length:] = 0
    token_types = torch.randint(2, (4, 9), generator=generator)
    if head == CLASSIFY:
        return tokens, token_types, torch.tensor([0, 2, 1, -100])
    positions = torch.tensor([[3, 8, 0], [5, 1, 0], [0, 0, 0], [0, 0, 0]])
    targets = torch.tensor([[7, 0, 49], [3, 12, -100], [21, -100, -100], [-100, -100, -100]])
    return tokens, token_types, positions, targets


def rows(batch, chosen):
    return [tensor[chosen] for tensor in batch]


def reference_of(model, head, norm, dropout=0.0):
    """transformers' model with the weights of the densified model; all names must match."""
    transformers = pytest.importorskip("transformers", reason="transformers is the reference of BERT's details")
    family = "Bert" if norm == POST else "MegatronBert"
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=POSITIONS,
        type_vocab_size=2,
        num_labels=CLASSES,
        layer_norm_eps=EPS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation="eager",
    )
    task = "SequenceClassification" if head == CLASSIFY else "MaskedLM"
    reference = getattr(transformers, f"{family}For{task}")(config)
    weights = densify(deepcopy(model)).state_dict()
    if head == PREDICT:
        # The output layer is the word embedding, and ours may have no bias.
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
        bias = weights.get("cls.predictions.bias", torch.zeros(VOCAB))
        weights |= {f"cls.predictions.{name}": bias for name in ("bias", "decoder.bias")}
    reference.load_state_dict(weights)
    return reference


def reference_logits(reference, tokens, token_types, positions=None):
    mask = (tokens != 0).long()
    mask[:, 0] = 1
    logits = reference(tokens, attention_mask=mask, token_type_ids=token_types).logits
    return logits if positions is None else logits.take_along_dim(positions[..., None], dim=1)


@both_formats
@both_norms
@both_heads
def test_logits_and_loss_are_those_of_bert(head, norm, kind):
    model = shaken(build(head, norm, kind))
    *inputs, targets = batch_for(head)
    with torch.no_grad():
        logits = model(*inputs)
        expected = reference_logits(reference_of(model, head, norm).eval(), *inputs)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        assert logits.var(0).sum() > 0.01  # sequences differ by far more than the tolerance
        loss = F.cross_entropy(expected.flatten(0, -2), targets.flatten(), reduction="sum")
        torch.testing.assert_close(model(*inputs, targets), loss, rtol=1e-4, atol=1e-4)


@both_norms
@pytest.mark.parametrize(
    "kind", [DENSE, "model.format=tensor", "model.format=low_rank", "model.format=mixed_dimension"]
)
def test_the_bias_of_the_output_is_berts(norm, kind):
    model = shaken(build(PREDICT, norm, kind, "model.output_bias=true"))
    bias = model.get_parameter("cls.predictions.bias")
    bias.data *= 5
    *inputs, targets = batch_for(PREDICT)
    expected = reference_logits(reference_of(model, PREDICT, norm).eval(), *inputs).detach()
    oracle = F.cross_entropy(expected.requires_grad_().flatten(0, -2), targets.flatten(), reduction="sum")
    loss = model(*inputs, targets)
    torch.testing.assert_close(model(*inputs), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, oracle, rtol=1e-4, atol=1e-4)
    by_token = torch.autograd.grad(oracle, expected)[0].sum((0, 1))
    torch.testing.assert_close(torch.autograd.grad(loss, bias)[0], by_token, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert int(model.measure(*inputs, targets)["correct"]) == int((expected.argmax(-1) == targets).sum())


@both_norms
@both_heads
def test_dropout_is_where_bert_has_it(head, norm, monkeypatch):
    """With the same seed both models drop the same numbers, because they draw in the same order, with our dropout."""
    ours = lambda input, p, training, inplace=False: dropout(input, p) if training else input  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "dropout", ours)
    model = build(head, norm, DENSE, "model.dropout=0.3").train()
    reference = reference_of(model, head, norm, dropout=0.3).train()
    *inputs, _ = batch_for(head)
    torch.manual_seed(5)
    found = model(*inputs)
    torch.manual_seed(5)
    torch.testing.assert_close(found, reference_logits(reference, *inputs), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, model(*inputs))
    assert torch.equal(model.eval()(*inputs), model(*inputs))


@both_heads
def test_tensorized_is_its_densified_twin(head):
    model = shaken(build(head))
    twin = densify(deepcopy(model))
    assert not any(isinstance(module, TTLinear) for module in twin.modules())
    losses = [m(*batch_for(head)) for m in (model, twin)]
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


@both_norms
@both_heads
def test_padding_changes_nothing(head, norm):
    model = shaken(build(head, norm))
    *inputs, _ = batch_for(head)
    with torch.no_grad():
        together = model(*inputs)
        for row, length in enumerate([9, 6, 1]):
            tokens, token_types, *positions = rows(inputs, slice(row, row + 1))
            alone = model(tokens[:, :length], token_types[:, :length], *positions)
            torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-5)


@both_norms
@both_heads
def test_a_row_that_only_fills_up_the_batch_does_no_harm(head, norm):
    model, batch = shaken(build(head, norm)), batch_for(head)
    gradients = [torch.autograd.grad(model(*rows(batch, slice(n))), list(model.parameters())) for n in (3, 4)]
    for without, with_row in zip(*gradients, strict=True):
        torch.testing.assert_close(without, with_row, rtol=1e-4, atol=1e-5)


@both_formats
@both_heads
def test_what_is_measured_is_loss_and_correct_predictions_by_logits(head, kind):
    model = shaken(build(head, kind)).eval()
    *inputs, targets = batch_for(head)
    with torch.no_grad():
        logits = model(*inputs)
        # Targets are the model's predictions, except in the first row.
        said = torch.where(targets == -100, targets, logits.argmax(-1))
        said[0] = (said[0] + 1) % CLASSES
        found = model.measure(*inputs, said)
        expected = F.cross_entropy(logits.flatten(0, -2), said.flatten(), reduction="sum")
    assert set(found) == {"loss", "correct"}
    torch.testing.assert_close(found["loss"], expected, rtol=1e-4, atol=1e-4)
    hits = int((logits.argmax(-1) == said).sum())
    assert int(found["correct"]) == hits
    assert 0 < hits < int((said != -100).sum())
    assert all(figure.ndim == 0 for figure in found.values())


@pytest.mark.parametrize("chunk", [1, 5, 12, None])
def test_correct_predictions_are_counted_in_chunks(chunk, generator):
    x, table = torch.randn(12, WIDTH, generator=generator), torch.randn(VOCAB, WIDTH, generator=generator)
    targets = (x @ table.T).argmax(-1)
    targets[[0, 4, 11]] = -100
    targets[7] = (targets[7] + 1) % VOCAB
    assert count_correct(x, table, targets, chunk).item() == 12 - 4


def test_no_logits_over_the_vocabulary_are_kept_for_the_backward_pass():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tuple(tensor.shape)) or tensor, lambda t: t
    ):
        build(PREDICT)(*batch_for(PREDICT))
    assert (12, WIDTH) in kept
    assert not {(12, VOCAB), (4, 3, VOCAB)} & set(kept)


@both_norms
@both_heads
@both_formats
def test_a_step_asks_for_no_value(kind, head, norm):
    """On a GPU; on a CPU ids are checked, and the number of distinct ones is asked for."""
    batch = batch_for(head)
    with fake_gpu(), without_waiting():
        model = build_model(*planned(head, norm, kind, "model.dropout=0.1"), generator=None)
        fake_batch = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in batch]
        torch.autograd.grad(model(*fake_batch), list(model.parameters()))


@both_heads
def test_the_encoder_is_one_graph_to_the_compiler(head):
    model, batch = build(head, DENSE), batch_for(head)
    expected = model(*batch)
    model.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(model(*batch), expected)


def test_a_removed_layer_leaves_its_bias():
    config, plan = planned(CLASSIFY)
    names = ["bert.encoder.layer.0.attention.self.key", "bert.encoder.layer.1.output.dense", "bert.pooler.dense"]
    removed = {n: p.with_bonds([0] * len(p.bonds)) if n in names else p for n, p in plan.items()}
    model = shaken(build_model(config, removed, torch.Generator().manual_seed(0)))
    twin = build_model(config, plan, generator=None)
    twin.load_state_dict({**twin.state_dict(), **model.state_dict()})
    for name in names:
        for core in twin.get_submodule(name).cores:
            torch.nn.init.zeros_(core)
    *inputs, targets = batch_for(CLASSIFY)
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), twin(*inputs))
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(*inputs, targets)
    assert loss.dtype == torch.float32
    assert all(g is not None for g in torch.autograd.grad(loss, list(model.parameters())))


@both_norms
@both_heads
def test_bf16_is_near_fp32(head, norm):
    model, batch = build(head, norm), batch_for(head)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(*batch)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, model(*batch), rtol=0.01, atol=0.0)


@both_formats
def test_it_learns_to_classify(kind):
    """The class is the second token modulo 3, among random tokens of random lengths."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, VOCAB, (64, 8), generator=generator)
    tokens[torch.arange(8) >= torch.randint(3, 9, (64, 1), generator=generator)] = 0
    losses = trained(build(CLASSIFY, kind), tokens, torch.zeros_like(tokens), tokens[:, 1] % 3)
    assert losses[0] == pytest.approx(torch.tensor(3.0).log().item(), abs=0.05)
    assert losses[-1] < 0.5 * losses[0]


@both_formats
@both_norms
def test_it_learns_to_predict_masked_tokens(norm, kind):
    """All tokens of a row are the same except the masked one."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, VOCAB - 1, (64, 1), generator=generator).repeat(1, 6)
    positions = torch.randint(6, (64, 1), generator=generator)
    targets = tokens[:, :1].clone()
    tokens.scatter_(1, positions, VOCAB - 1)
    losses = trained(build(PREDICT, norm, kind), tokens, torch.zeros_like(tokens), positions, targets)
    assert losses[0] == pytest.approx(torch.tensor(float(VOCAB)).log().item(), abs=0.05)
    assert losses[-1] < 0.5 * losses[0]


def trained(model, *batch):
    """Mean losses of some steps on one batch."""
    optimizer = torch.optim.AdamW(parameter_groups(model, Optim(lr=1e-2)))
    losses = []
    for _ in range(40):
        loss = model(*batch) / batch[-1].numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_same_seed_same_weights():
    first, again, other = (dict(build(CLASSIFY, seed=s).named_parameters()) for s in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["bert.pooler.dense.core_1"], other["bert.pooler.dense.core_1"])
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@both_formats
@both_norms
@both_heads
def test_every_matrix_starts_at_the_size_of_berts(head, norm, kind):
    model = densify(build(head, norm, kind))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.square().mean().sqrt().item() == pytest.approx(0.02, rel=0.35), name
        else:
            assert torch.all(parameter == (1.0 if name.endswith(("LayerNorm.weight", "ln.weight")) else 0.0)), name


@both_heads
def test_a_model_without_a_generator_draws_no_train_and_is_there_to_be_loaded(head):
    with Operations() as drawn:
        model = shaken(build(head))
    with Operations() as not_drawn:
        empty = build_model(*planned(head), generator=None)
    assert "linalg_qr" in drawn.names - not_drawn.names  # a core is drawn as isometries
    empty.load_state_dict(model.state_dict())
    assert torch.equal(empty(*batch_for(head)), model(*batch_for(head)))


@both_norms
@both_heads
def test_only_matrices_decay(head, norm):
    model = build(head, norm)
    groups = {group["name"]: group["params"] for group in parameter_groups(model, Optim())}
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(names[id(p)].endswith(("bias", "LayerNorm.weight", "ln.weight")) for p in groups["no_decay"])
    dense = {names[id(p)] for p in groups["dense"]}
    always_dense = {f"bert.embeddings.{kind}_embeddings.weight" for kind in ("position", "token_type")}
    assert dense == always_dense | ({"classifier.weight"} if head == CLASSIFY else set())


@both_heads
def test_a_sequence_longer_than_the_positions_is_an_error(head):
    ones = torch.ones(1, 13, dtype=torch.int64)
    with pytest.raises(ConfigError, match="13 tokens was found, but the model has 12 positions"):
        build(head)(ones, 0 * ones, *([] if head == CLASSIFY else [0 * ones]))
