import pytest
import torch
from torch.nn import functional as F

from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.shapes import TTShape, plan_tt

SHAPES = [
    plan_tt(24, 30, 1, 7),
    TTShape(24, 30, (6, 4), (5, 6), (1, 5, 7, 6, 1)),
    TTShape(45, 105, (5, 3, 3), (3, 5, 7), (1, 4, 7, 9, 8, 5, 1)),
    plan_tt(97, 211, 3, 9, 5),
    plan_tt(97, 60, 4, 6),
    TTShape(24, 105, (6, 4), (3, 5, 7), (1, 3, 8, 5, 4, 1)),
    TTShape(24, 30, (24,), (5, 6), (1, 7, 5, 1)),
]


def _layer(shape, generator, dtype=torch.float32, bias=True):
    layer = TTLinear(shape, bias=bias, generator=generator, dtype=dtype)
    for gate in layer.gates:  # gates of one would hide a gate in the wrong place
        gate.data.uniform_(0.5, 1.5, generator=generator)
    if bias:
        layer.bias.data.normal_(generator=generator)
    return layer


def _dense_by_einsum(layer):
    """W from the definition, one bond at a time and with no code of the layer: rows in, columns out."""
    whole = torch.ones(1, 1, dtype=layer.cores[0].dtype)
    gates = [*layer.gates, torch.ones(1)]
    for core, gate in zip(layer.cores, gates, strict=True):
        whole = torch.einsum("pa,anb,b->pnb", whole, core, gate.to(core)).flatten(0, 1)
    shape = layer.plan
    padded_in = torch.tensor(shape.in_modes).prod()
    return whole.reshape(padded_in, -1)[: shape.inputs, : shape.outputs].T


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dense_weight_follows_the_definition(shape, generator, assert_close):
    layer = _layer(shape, generator, torch.float64)
    U, V = layer.factors()
    oracle = _dense_by_einsum(layer)
    assert (U.shape, V.shape) == ((shape.inputs, shape.middle_rank), (shape.middle_rank, shape.outputs))
    assert_close((U @ V).T, oracle, torch.float64)
    assert_close(layer.to_dense(), oracle, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_gradients_match_a_dense_layer(shape, batch, dtype, generator, assert_close):
    layer = _layer(shape, generator)
    x = torch.randn(*batch, shape.inputs, generator=generator, requires_grad=True)
    grad_y = torch.randn(*batch, shape.outputs, generator=generator)
    parameters = [x, *layer.parameters()]
    expected_y = F.linear(x, _dense_by_einsum(layer), layer.bias)
    expected = torch.autograd.grad(expected_y, parameters, grad_y)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = layer(x)
    assert y.dtype == dtype
    actual = torch.autograd.grad(y, parameters, grad_y.to(y.dtype))
    assert_close(y, expected_y, dtype)
    for parameter, grad, oracle in zip(parameters, actual, expected, strict=True):
        assert grad.dtype == parameter.dtype == torch.float32
        assert_close(grad, oracle, dtype)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_gradients_in_float64(shape, generator):
    layer = _layer(shape, generator, torch.float64)
    x = torch.randn(2, shape.inputs, dtype=torch.float64, generator=generator, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def call(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *layer.parameters()), fast_mode=True)


def test_backward_keeps_the_input_the_narrow_intermediate_and_the_merged_sides(generator):
    shape = plan_tt(256, 704, 3, 16)
    layer = _layer(shape, generator, bias=False)
    x = torch.randn(2000, 256, generator=generator, requires_grad=True)
    own = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
    tokens = x.numel() + 2000 * shape.middle_rank
    sides = shape.middle_rank * (256 + 704)
    assert y.requires_grad
    assert sum(kept.values()) <= tokens + 2 * sides + shape.num_parameters


def test_parameters_are_registered_by_name_on_the_module_itself():
    layer = TTLinear(plan_tt(45, 105, 3, 4), bias=True)
    names = [f"core_{k}" for k in range(1, 7)] + [f"gate_{k}" for k in range(1, 6)] + ["bias"]
    assert [name for name, _ in layer.named_parameters(recurse=False)] == names
    assert [p is q for p, q in zip(layer.cores + layer.gates, layer.parameters(), strict=False)] == [True] * 11
    assert all(bool((gate == 1).all()) for gate in layer.gates)
    assert sum(c.numel() for c in layer.cores) == layer.plan.num_parameters
    assert sum(g.numel() for g in layer.gates) == layer.plan.num_gates
    assert layer.plan.flops_per_token == 2 * layer.plan.middle_rank * 150


def test_repr_shows_modes_and_ranks():
    layer = TTLinear(plan_tt(768, 768, 3, 30))
    assert "768 → 768, 12·8·8 | 8·8·12, ranks (12, 30, 30, 30, 12)" in repr(layer)


def test_computes_in_the_dtype_of_a_bf16_input(generator, assert_close):
    layer = _layer(plan_tt(24, 30, 2, 4), generator)
    x = torch.randn(3, 24, generator=generator).bfloat16()
    y = layer(x)
    assert y.dtype == torch.bfloat16
    assert_close(y, F.linear(x.float(), layer.to_dense(), layer.bias), torch.bfloat16)
