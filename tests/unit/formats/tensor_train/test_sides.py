"""Merging and multiplying together gives what every layer gives by itself."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from comera_dist.formats.dense_layers import RemovedLinear
from comera_dist.formats.shared_input import shared_input
from comera_dist.formats.tensor_train.linear import TTLinear, merged_together
from comera_dist.formats.tensor_train.shapes import TTShape, plan_tt
from comera_dist.formats.tensor_train.sides import merge_sides_of

SQUARE = plan_tt(97, 97, 3, 9, 5)
MIXED = [
    SQUARE,
    SQUARE,
    plan_tt(97, 211, 3, 9, 5),
    plan_tt(97, 97, 1, 7),
    plan_tt(97, 97, 3, 30, 30),
    TTShape(97, 105, (98,), (3, 5, 7), (1, 8, 5, 4, 1)),
    SQUARE,
]


def _layers(shapes, generator, bias=False):
    layers = nn.ModuleList(TTLinear(shape, bias=bias, generator=generator) for shape in shapes)
    for name, parameter in layers.named_parameters():
        if "gate" in name or "bias" in name:
            parameter.data.uniform_(0.5, 1.5, generator=generator)
    return layers


PRODUCTS = torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm


class Calls(TorchDispatchMode):
    """Counts calls of operations; with `shape`, those whose first argument has it."""

    def __init__(self, *operations, shape=None):
        super().__init__()
        self.operations, self.shape, self.count = operations, shape, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket in self.operations and self.shape in (None, args[0].shape)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("limit", [0, 700, 2**18])
def test_sides_merged_together_are_the_factors_of_each_layer(limit, generator, assert_close):
    layers = _layers(MIXED, generator)
    for layer, (U_NR, V_RM) in zip(layers, merge_sides_of(list(layers), limit), strict=True):
        U, V = layer.factors()
        rank = U.shape[1]
        assert_close(U_NR[:, :rank], U)
        assert_close(V_RM[:rank], V)
        assert not U_NR[:, rank:].any()
        assert not V_RM[rank:].any()


def test_gradients_do_not_depend_on_what_is_merged_together(generator, assert_close):
    layers = _layers(MIXED, generator)
    weights = [(torch.randn(97, 1, generator=generator), torch.randn(1, 1, generator=generator)) for _ in layers]

    def grads(merged):
        loss = sum((U.mul(a).sum() + V.mul(b).square().sum()) for (U, V), (a, b) in zip(merged, weights, strict=True))
        return torch.autograd.grad(loss, list(layers.parameters()))

    alone = grads([merge_sides_of([layer])[0] for layer in layers])
    for actual, expected in zip(grads(merge_sides_of(list(layers))), alone, strict=True):
        assert_close(actual, expected)


def test_equal_sides_take_one_chain_of_products(generator):
    layers = list(_layers([plan_tt(64, 64, 3, 4)] * 8, generator))
    with Calls(*PRODUCTS) as alone:
        merge_sides_of(layers[:1])
    with Calls(*PRODUCTS) as together:
        merge_sides_of(layers)
    assert together.count == alone.count > 0


def test_a_model_merges_once_while_the_context_lasts(generator, assert_close):
    model = nn.Sequential(*_layers([SQUARE] * 3, generator))
    x = torch.randn(1000, 97, generator=generator)
    expected = model(x)
    with merged_together(model, 1000), Calls(*PRODUCTS) as products:
        actual = model(x)
    assert products.count == 2 * 3  # x U and (x U) V of each
    assert_close(actual, expected)
    assert all(layer.merged_sides is None for layer in model)


def test_layers_forget_their_sides_when_the_forward_pass_fails(generator):
    model = nn.Sequential(*_layers([SQUARE] * 2, generator))
    with pytest.raises(ZeroDivisionError), merged_together(model, 5):
        raise ZeroDivisionError
    assert all(layer.merged_sides is None for layer in model)


def test_a_sharded_model_is_not_merged_together(generator):
    model = nn.Sequential(*_layers([SQUARE] * 2, generator))
    model.merges_together = False
    with merged_together(model, 5):
        assert all(layer.merged_sides is None for layer in model)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_shared_input_gives_what_each_layer_gives(dtype, bias, generator, assert_close):
    trains = _layers([SQUARE, plan_tt(97, 30, 2, 7), plan_tt(97, 64, 1, 20)], generator, bias)
    layers = nn.ModuleList([trains[0], nn.Linear(97, 12, bias=bias), trains[1], RemovedLinear(97, 8), trains[2]])
    x = torch.randn(2, 500, 97, generator=generator, requires_grad=True)
    grads = [torch.randn(2, 500, m, generator=generator) for m in (97, 12, 30, 8, 64)]
    assert {layer.contraction_plan(1000, dtype).path for layer in trains} == {"sides"}
    parameters = [x, *layers.parameters()]

    def run(call):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            outputs = call()
        upstream = [grad.to(y.dtype) for grad, y in zip(grads, outputs, strict=True)]
        return outputs, torch.autograd.grad(outputs, parameters, upstream)

    outputs, gradients = run(lambda: shared_input(x, layers))
    expected, expected_gradients = run(lambda: [layer(x) for layer in layers])
    for actual, oracle in zip((*outputs, *gradients), (*expected, *expected_gradients), strict=True):
        assert actual.dtype == oracle.dtype
        assert_close(actual, oracle, dtype)


@pytest.mark.parametrize("is_train", [True, False])
def test_a_shared_input_is_cast_once(is_train, generator):
    layers = _layers([SQUARE] * 3, generator) if is_train else nn.ModuleList(nn.Linear(97, 97) for _ in range(3))
    x = torch.randn(1000, 97, generator=generator)
    with torch.autocast("cpu", torch.bfloat16), Calls(torch.ops.aten._to_copy, shape=x.shape) as casts:
        shared_input(x, layers)
    assert casts.count == 1


def test_a_shared_input_is_multiplied_once(generator):
    layers = _layers([SQUARE] * 3, generator)
    x = torch.randn(1000, 97, generator=generator)
    with merged_together(layers, 1000), Calls(*PRODUCTS) as products:
        shared_input(x, layers)
    assert products.count == 1 + 3
