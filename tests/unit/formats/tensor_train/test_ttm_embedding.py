import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.formats.tensor_train.embedding import TTMEmbedding, distinct_at_most
from comera_dist.formats.tensor_train.lookup_plan import lookup_cost
from comera_dist.formats.tensor_train.shapes import TTMShape, plan_ttm

SHAPES = [
    plan_ttm(61, 20, 1, 4),
    TTMShape(61, 20, (8, 8), (4, 5), (1, 7, 1)),
    TTMShape(61, 19, (4, 4, 4), (2, 5, 2), (1, 6, 5, 1)),
    TTMShape(61, 24, (4, 2, 2, 4), (2, 3, 2, 2), (1, 4, 6, 5, 1)),
]


def _embedding(shape, generator, dtype=torch.float32):
    module = TTMEmbedding(shape, std=1.0, generator=generator, dtype=dtype)
    for gate in module.gates:
        gate.data.uniform_(0.5, 1.5, generator=generator)
    return module


def _digits(number, modes):
    digits = []
    for mode in reversed(modes):
        number, digit = divmod(number, mode)
        digits.append(digit)
    return digits[::-1]


def _row_by_definition(embedding, token):
    row = torch.ones(1, 1, dtype=embedding.core_1.dtype)
    gates = [*embedding.gates, torch.ones(1)]
    digits = _digits(token, embedding.plan.in_modes)
    for core, gate, digit in zip(embedding.cores, gates, digits, strict=True):
        row = torch.einsum("pa,aeb,b->peb", row, core[:, digit], gate.to(core)).flatten(0, 1)
    return row.flatten()[: embedding.embedding_dim]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_table_follows_the_definition(shape, generator, assert_close):
    embedding = _embedding(shape, generator, torch.float64)
    oracle = torch.stack([_row_by_definition(embedding, token) for token in range(61)])
    assert_close(embedding.to_dense(), oracle, torch.float64)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("size", [(), (7,), (3, 40), (0,)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_and_gradients_match_the_table(shape, size, autocast, generator, assert_close):
    embedding = _embedding(shape, generator)
    ids = torch.randint(0, 61, size, generator=generator)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        rows = embedding(ids)
    oracle = embedding.to_dense()[ids]
    assert rows.dtype == torch.float32
    assert_close(rows, oracle)
    grad = torch.randn(oracle.shape, generator=generator)
    parameters = list(embedding.parameters())
    expected = torch.autograd.grad(oracle, parameters, grad)
    for actual, wanted in zip(torch.autograd.grad(rows, parameters, grad), expected, strict=True):
        assert_close(actual, wanted)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_gradients_in_float64(shape, generator):
    embedding = _embedding(shape, generator, torch.float64)
    names = [name for name, _ in embedding.named_parameters()]
    ids = torch.tensor([0, 60, 7, 7, 13])

    def call(*parameters):
        return torch.func.functional_call(embedding, dict(zip(names, parameters, strict=True)), (ids,))

    assert torch.autograd.gradcheck(call, tuple(embedding.parameters()), fast_mode=True)


def test_each_distinct_token_is_computed_once(generator):
    embedding = _embedding(SHAPES[2], generator)
    with FlopCounterMode(display=False) as counter:
        embedding(torch.tensor([[5, 9, 5], [9, 9, 60]]))
    assert counter.get_total_flops() == lookup_cost(SHAPES[2], 3)[0] < lookup_cost(SHAPES[2], 4)[0]


@pytest.mark.parametrize("size", [1, 7, 50, 200])
def test_distinct_ids_are_found_without_asking_the_device_how_many(size, generator):
    ids = torch.randint(0, 61, (size,), generator=generator)
    expected, expected_position = torch.unique(ids, return_inverse=True)
    distinct, position = distinct_at_most(ids, min(size, 61))
    assert len(distinct) == min(size, 61)
    assert distinct[: len(expected)].tolist() == expected.tolist()
    assert not distinct[len(expected) :].any()
    assert position.tolist() == expected_position.tolist()


def test_unused_places_change_neither_rows_nor_gradients(generator, assert_close):
    ids = torch.randint(0, 30, (3, 40), generator=generator)
    module = _embedding(SHAPES[2], generator)
    grad = torch.randn(3, 40, 19, generator=generator)
    parameters = list(module.parameters())
    expected = module(ids)
    expected_gradients = torch.autograd.grad(expected, parameters, grad)
    distinct, position = distinct_at_most(ids.flatten(), 61)
    rows = module.rows(distinct)[position].view(3, 40, 19)
    assert_close(rows, expected)
    for actual, oracle in zip(torch.autograd.grad(rows, parameters, grad), expected_gradients, strict=True):
        assert_close(actual, oracle)


def test_no_size_of_the_lookup_depends_on_the_ids():
    """Fake tensors have no values: an operation whose shape depends on values fails."""
    with FakeTensorMode():
        ids = torch.empty(120, dtype=torch.long)
        distinct, position = distinct_at_most(ids, 61)
        assert (distinct.shape, position.shape) == ((61,), (120,))
        with pytest.raises(DynamicOutputShapeException):
            torch.unique(ids)


@pytest.mark.parametrize(
    ("shape", "share"), [(plan_ttm(4096, 256, 3, 16), 4), (plan_ttm(10_131_227, 32, 3, 8), 1000)], ids=str
)
def test_no_tensor_of_the_tables_size_is_made_for_a_few_tokens(shape, share, generator):
    embedding = TTMEmbedding(shape, generator=generator)
    sizes = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend([result.numel()] if isinstance(result, torch.Tensor) else [])
            return result

    with Sizes():
        embedding(torch.arange(50)).sum().backward()
    assert max(sizes) < shape.dense_parameters / share


@pytest.mark.parametrize("ids", [[0, 61], [-1, 3]])
def test_an_id_outside_the_vocabulary_is_refused(ids):
    with pytest.raises(IndexError, match=r"^id (61|-1) is outside the table of 61 rows; take data"):
        TTMEmbedding(SHAPES[2])(torch.tensor(ids))


def test_parameters_are_registered_by_name_on_the_module_itself():
    embedding = TTMEmbedding(SHAPES[2])
    names = ["core_1", "core_2", "core_3", "gate_1", "gate_2"]
    assert [name for name, _ in embedding.named_parameters(recurse=False)] == names
    assert "4×2 4×5 4×2" in repr(embedding)
