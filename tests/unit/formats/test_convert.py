import logging
from itertools import product

import pytest
import torch
from torch import nn

from comera_dist.errors import ConfigError
from comera_dist.formats import block_path
from comera_dist.formats.convert import LinearFormat, TableFormat, densify, tensorize
from comera_dist.formats.tensor_train import contraction_plan
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import TTLinear


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(61, 24), nn.Linear(24, 30), nn.ReLU(), nn.Linear(30, 24, bias=False), nn.Linear(24, 5)
    )


def _encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2)


def test_the_first_pattern_that_applies_wins():
    low_rank, train, table = (
        LinearFormat("low_rank", rank=3),
        LinearFormat(order=2, rank=4),
        TableFormat(order=2, rank=4),
    )
    model = tensorize(_model(), {"4": "dense", "1": low_rank, "*": train, "[0]": table})
    kinds = [type(layer) for layer in model]
    assert kinds == [TTMEmbedding, TTLinear, nn.ReLU, TTLinear, nn.Linear]
    assert model[1].plan.core_shapes == ((1, 24, 3), (3, 30, 1))
    assert len(model[3].cores) == 4


def test_full_rank_conversion_and_its_inverse_compute_the_same(assert_close):
    model, ids = _model(), torch.arange(61)
    expected = model(ids)
    tensorize(model, {"*": LinearFormat(order=1, rank=99), "0": TableFormat(order=1, rank=99)}, from_weights=True)
    assert isinstance(model[0], TTMEmbedding)
    assert isinstance(model[4], TTLinear)
    assert_close(model(ids), expected)
    tensors = model(ids)
    dense = densify(model)
    assert all(map(isinstance, dense, (nn.Embedding, nn.Linear, nn.ReLU, nn.Linear, nn.Linear)))
    assert dense[3].bias is None
    assert_close(dense(ids), tensors)


def test_fresh_layers_take_the_size_of_the_old_weights_and_keep_their_biases(assert_close, generator):
    model = _model()
    model[1].weight.data.mul_(7)
    rms = [float(model[i].weight.detach().square().mean().sqrt()) for i in (0, 1)]
    bias = model[1].bias.detach().clone()
    tensorize(model, {"*": LinearFormat(order=2, rank=6), "0": TableFormat(order=2, rank=6)}, generator=generator)
    for index, wanted in zip((0, 1), rms, strict=True):
        assert float(model[index].to_dense().square().mean().sqrt()) == pytest.approx(wanted, rel=0.1)
    assert_close(model[1].bias, bias)


def _trained(module: nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("from_weights", [False, True])
def test_frozen_layers_have_frozen_factors(from_weights):
    model = _model()
    model[0].requires_grad_(False)
    model[1].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    tensorize(model, {"*": LinearFormat("low_rank", rank=9), "0": TableFormat(order=2, rank=6)}, from_weights)
    assert _trained(model) == {
        "1.bias",
        *(f"{layer}.{name}" for layer in "34" for name in ("core_1", "core_2", "gate_1")),
    }
    densify(model)
    assert _trained(model) == {"1.bias", "3.weight", "4.weight"}


def test_the_module_may_be_a_layer_itself():
    layer = tensorize(nn.Linear(24, 30), {"*": LinearFormat(order=2, rank=4)})
    assert isinstance(layer, TTLinear)
    assert isinstance(densify(layer), nn.Linear)


@pytest.mark.parametrize("format", [LinearFormat(order=2, rank=4), LinearFormat("block_train", rank=2)], ids=repr)
@pytest.mark.parametrize("from_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_keeps_its_dtype_there_and_back(dtype, from_weights, format):
    model, ids = _model().to(dtype), torch.arange(61)
    tensorize(model, {"1": format, "0": TableFormat("low_rank", rank=4)}, from_weights)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model(ids).dtype == dtype
    assert densify(model)(ids).dtype == dtype


class Scaled(nn.Embedding):
    """As in Gemma 3."""

    def forward(self, ids):
        return 5 * super().forward(ids)


def test_layers_that_do_more_stay_dense_and_are_named(caplog, assert_close):
    model, ids = nn.Sequential(Scaled(61, 24), nn.Linear(24, 24), nn.Linear(24, 24)), torch.arange(61)
    model[1].register_forward_hook(lambda module, inputs, outputs: 0 * outputs)
    expected = model(ids)
    tensorize(model, {"*": LinearFormat("low_rank", rank=24)}, from_weights=True)
    assert [type(layer) for layer in model[:2]] == [Scaled, nn.Linear]
    assert isinstance(model[2], TTLinear)
    assert_close(model(ids), expected)
    assert "left dense, they compute something of their own: 0" in caplog.text
    assert "left dense, their hooks would be lost: 1" in caplog.text
    with pytest.raises(ConfigError, match="applies to no layer"):
        tensorize(model, {"0": TableFormat("low_rank", rank=8)})


def test_layers_that_grow_are_named(caplog):
    """A rank above the largest possible one is clipped, and factors and gates are then larger than their product."""
    with caplog.at_level(logging.WARNING):
        layers = {name: nn.Linear(16, 8, bias=False) for name in ("wide", "narrow")}
        ranks = {"wide": LinearFormat("low_rank", rank=5000), "narrow": LinearFormat("low_rank", rank=2)}
        tensorize(nn.ModuleDict(layers), ranks)
    (record,) = caplog.records
    assert record.getMessage() == "more numbers than in dense layers, give lower ranks: wide (200 instead of 128)"


@pytest.mark.parametrize("choice", [LinearFormat("low_rnk"), TableFormat("low_rnk")])
def test_an_unknown_format_is_refused_by_its_name(choice):
    layer = nn.Linear(4, 4) if isinstance(choice, LinearFormat) else nn.Embedding(4, 4)
    with pytest.raises(ConfigError, match=r"Format\('low_rnk'\) names no format, expected one of dense, tensor, "):
        tensorize(nn.Sequential(layer), {"0": choice})


def test_layers_that_no_pattern_names_are_not_reported(caplog):
    encoder = _encoder()
    tensorize(encoder, {"*.linear1": LinearFormat("low_rank", rank=4)})
    assert "left dense" not in caplog.text


@pytest.mark.parametrize(
    ("name", "choice", "sentence"),
    [
        ("0", LinearFormat("low_rank", rank=4), "applies to no layer: 0 is an embedding; give a TableFormat"),
        ("1", TableFormat("low_rank", rank=4), "applies to no layer: 1 is a linear layer; give a LinearFormat"),
    ],
)
def test_a_format_of_the_other_kind_of_layer_is_named(name, choice, sentence):
    model = nn.Sequential(nn.Embedding(61, 24), nn.Linear(24, 24))
    with pytest.raises(ConfigError, match=sentence):
        tensorize(model, {name: choice})


@pytest.mark.parametrize("format", ["low_rank", "block_train"])
def test_a_layer_of_a_users_model_compiles_as_one_graph(format, monkeypatch, assert_close):
    for planner in (contraction_plan._plan, block_path._cheapest):  # as in a program that has compiled nothing yet
        monkeypatch.delattr(planner.of_constants.__wrapped__, "_dynamo_marked_constant", raising=False)
    model = tensorize(_model(), {"1": LinearFormat(format, rank=2)})
    compiled = torch.compile(model[1], backend="eager", fullgraph=True)
    for rows in (3, 40, 300):  # the second number makes it dynamic
        x = torch.randn(rows, model[1].in_features)
        assert_close(compiled(x), model[1](x))


@pytest.mark.parametrize("pattern", ["*", "0", "2"])
def test_a_layer_used_twice_stays_one_layer(pattern):
    shared = nn.Linear(24, 24)
    model = tensorize(nn.Sequential(shared, nn.ReLU(), shared), {pattern: LinearFormat(order=2, rank=4)})
    assert isinstance(model[0], TTLinear)
    assert model[0] is model[2]
    densify(model)
    assert model[0] is model[2]


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_encoder_of_torch_runs(training, caplog, assert_close):
    encoder = _encoder().train(training)
    x, padding = torch.randn(3, 10, 32), torch.arange(10) >= torch.tensor([[10], [7], [4]])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=padding)
    with caplog.at_level(logging.WARNING):
        tensorize(encoder, {"*": LinearFormat(order=1, rank=99)}, from_weights=True)
    assert "layers.0.self_attn.out_proj" in caplog.text
    assert type(encoder.layers[0].linear1) is TTLinear
    with torch.no_grad():
        actual = encoder(x, src_key_padding_mask=padding)
    assert_close(actual[~padding], expected[~padding])


def test_a_pattern_that_applies_to_nothing_names_near_layers():
    with pytest.raises(ConfigError, match=r"'layers\.\*\.linear3'.*layers\.[01]\.linear[12]"):
        tensorize(_encoder(), {"layers.*.linear3": LinearFormat(order=2, rank=4)})
    with pytest.raises(ConfigError, match=r"'0' \(LinearFormat\('tensor'\)\) applies to no layer"):
        tensorize(_model(), {"0": LinearFormat(order=2, rank=4)})


def test_the_name_of_a_format_alone_is_no_choice():
    with pytest.raises(ConfigError, match=r"'1' has 'low_rank', expected a LinearFormat, a TableFormat or 'dense'"):
        tensorize(_model(), {"1": "low_rank"})


@pytest.mark.parametrize("from_weights", [False, True])
def test_a_layer_that_no_format_makes_smaller_stays_as_it_is(from_weights):
    model = nn.Sequential(nn.Linear(1, 3), nn.Linear(64, 64))
    small = model[0]
    tensorize(model, {"*": LinearFormat("auto", share=0.5)}, from_weights=from_weights)
    assert model[0] is small
    assert not isinstance(model[1], nn.Linear)


def test_tied_weights_are_not_parted():
    model = nn.Sequential(nn.Embedding(60, 24), nn.Linear(24, 60))
    model[1].weight = model[0].weight
    with pytest.raises(ConfigError, match="0 and 1 share one weight"):
        tensorize(model, {"1": LinearFormat(order=2, rank=4)})


def test_an_embedding_with_special_rows_is_refused():
    with pytest.raises(ConfigError, match="the layer has a padding_idx"):
        tensorize(nn.Embedding(60, 24, padding_idx=0), {"*": TableFormat(order=2, rank=4)})


@pytest.mark.parametrize("from_weights", [False, True])
def test_weights_with_undefined_numbers_are_refused(from_weights):
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))
    model[1].weight.data[1, 2] = torch.inf
    with pytest.raises(ConfigError, match="the weight of 1 holds NaN or infinities, expected numbers; load or draw it"):
        tensorize(model, {"*": LinearFormat("low_rank", rank=1)}, from_weights)


def test_weights_without_values_are_refused():
    with (
        torch.device("meta"),
        pytest.raises(ConfigError, match="1 is on the meta device, where weights have no values"),
    ):
        tensorize(nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), {"*": LinearFormat("low_rank", rank=1)})


def test_a_refused_plan_changes_nothing():
    model = _model()
    with pytest.raises(ConfigError):
        tensorize(model, {"1": LinearFormat(order=2, rank=4), "3": LinearFormat(order=2, rank=4, in_modes=(2, 2))})
    assert all(not isinstance(layer, TTLinear) for layer in model)


@pytest.mark.parametrize(
    ("format", "from_weights"),
    [
        *product(
            (
                LinearFormat("tensor", order=2, rank=4),
                LinearFormat("low_rank", rank=4),
                LinearFormat("block_train", rank=2),
            ),
            (False, True),
        ),
        (LinearFormat("sltrain", rank=4), True),  # a fresh one draws its sparse part as its authors do
    ],
)
def test_a_layer_that_starts_at_zero_computes_zero_and_learns(format, from_weights):
    layer = nn.Linear(24, 24, bias=False)
    nn.init.zeros_(layer.weight)
    new = tensorize(layer, {"*": format}, from_weights)
    x = torch.randn(9, 24)
    assert not new(x).any()
    new(x).square().sum().add(new(x).sum()).backward()
    assert any(p.grad is not None and p.grad.abs().max() > 1e-3 for name, p in new.named_parameters() if "core" in name)


def test_blocks_of_zeros_learn_beside_others():
    layer = nn.Linear(24, 24, bias=False)
    with torch.no_grad():
        layer.weight[6:] = 0
    expected = layer.weight.detach().clone()
    new = tensorize(layer, {"*": LinearFormat("block_train", rank=6)}, from_weights=True)
    torch.testing.assert_close(new.to_dense(), expected)
    new(torch.randn(9, 24)).sum().backward()
    gradients = new.core_2.grad.flatten(2).abs().amax(-1)
    assert float(gradients.min()) > 1e-3


def _scaled(layer):
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)


class _Called(nn.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_scaled, "they compute something of their own"),
        (lambda layer: setattr(layer, "__class__", _Called), "they compute something of their own"),
        (lambda layer: layer.register_full_backward_pre_hook(lambda *_: None), "their hooks would be lost"),
        (lambda layer: layer.weight.register_hook(lambda grad: 2 * grad), "their hooks would be lost"),
        (lambda layer: layer.register_state_dict_post_hook(lambda *_: None), "their hooks would be lost"),
        (nn.utils.parametrizations.weight_norm, "their parametrizations would be lost"),
        (lambda layer: layer.register_buffer("mask", torch.ones(3)), "they hold more than a weight and a bias"),
    ],
)
def test_no_setting_of_a_layer_is_lost(change, reason, caplog):
    model = _model()
    change(model[1])
    kept = model[1]
    with caplog.at_level(logging.WARNING):
        tensorize(model, {"*": LinearFormat("low_rank", rank=3)})
    assert model[1] is kept
    assert isinstance(model[3], TTLinear)
    assert f"left dense, {reason}: 1" in caplog.text


@pytest.mark.parametrize("key", ["scale_grad_by_freq", "sparse"])
def test_a_table_with_gradients_of_its_own_kind_is_refused(key):
    with pytest.raises(ConfigError, match=f"0 has a padding_idx, max_norm, .*{key}"):
        tensorize(nn.Sequential(nn.Embedding(9, 4, **{key: True})), {"*": TableFormat("low_rank", rank=2)})


def test_attention_with_two_names_keeps_its_weights():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.second = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

        def forward(self, x):
            return self.second(self.first(x))

    model = tensorize(Shared(), {"*": LinearFormat("low_rank", rank=4)})
    assert isinstance(model.first.linear1, TTLinear)
    model(torch.randn(2, 5, 32)).sum().backward()


def test_densify_hands_hooks_on():
    model = tensorize(_model(), {"*": LinearFormat("low_rank", rank=3)})
    handle = model[3].register_forward_hook(lambda module, inputs, output: 0 * output)
    densify(model.eval())
    assert not model[3].training
    assert not model[3](torch.ones(1, 30)).any()
    handle.remove()
    assert model[3](torch.ones(1, 30)).any()


@pytest.mark.parametrize(
    "format", [TableFormat("block_train", rank=2), TableFormat("mixed_dimension", rank=4)], ids=repr
)
def test_rows_of_a_table_are_not_rounded_by_autocast(format, assert_close):
    table = tensorize(nn.Embedding(40, 24), {"*": format})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = table(torch.arange(40))
    assert rows.dtype is torch.float32
    assert_close(rows, table.to_dense())
