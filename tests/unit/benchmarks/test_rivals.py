from collections import Counter
from math import prod

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.rivals import tensorly_layer
from benchmarks.rivals.comera_scheme import ComeraEmbedding, ComeraLinear, compressed_size, rank_penalty
from benchmarks.rivals.plain_ttm import PlainTTMEmbedding
from comera_dist.errors import ConfigError

TTM = ((3, 2, 2, 3), (2, 3, 2, 2), (1, 4, 6, 5, 1))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


def _comera_linear(ranks=(1, 3, 4, 5, 4, 2, 1)):
    return ComeraLinear((3, 2, 4), (4, 3, 2), ranks, bias=True)


def _mask_some(train):
    """Rank vectors away from one, with one masked entry on every bond."""
    for vector in train.rank_vectors:
        vector.data.uniform_(0.5, 1.5)
        vector.data[1] = -0.3
    return train.double()


def _active_vectors(train):
    """By their definition: entries that are not above the threshold count as zero."""
    vectors = [torch.where(v > 1e-2, v, torch.zeros_like(v)) for v in train.rank_vectors]
    return [*vectors, torch.ones(1, dtype=torch.float64)]


def _dense_linear(layer):
    """W (N, M), one bond at a time."""
    whole = torch.ones(1, 1, dtype=torch.float64)
    for core, vector in zip(layer.cores, _active_vectors(layer), strict=True):
        whole = torch.einsum("pa,anb,b->pnb", whole, core, vector).flatten(0, 1)
    return whole.reshape(prod(core.shape[1] for core in list(layer.cores)[:3]), -1)


def _table(cores, vectors):
    """The table (V, D), one bond at a time."""
    whole = torch.ones(1, 1, 1, dtype=torch.float64)
    for core, vector in zip(cores, vectors, strict=True):
        whole = torch.einsum("vea,awfb,b->vwefb", whole, core, vector).flatten(0, 1).flatten(1, 2)
    return whole.squeeze(-1)


def _assert_same(actual_y, expected_y, parameters):
    torch.testing.assert_close(actual_y, expected_y)
    grad = torch.randn_like(expected_y)
    actual, expected = (torch.autograd.grad(y, parameters, grad) for y in (actual_y, expected_y))
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("batch", [(5,), (2, 3), (0,)], ids=str)
def test_comera_linear_is_a_dense_layer_of_its_masked_cores(batch):
    layer = _mask_some(_comera_linear())
    layer.bias.data.normal_()
    x = torch.randn(*batch, 24, dtype=torch.float64, requires_grad=True)
    expected = x @ _dense_linear(layer) + layer.bias
    _assert_same(layer(x), expected, [x, *layer.parameters()])


def test_masked_ranks_neither_act_nor_learn():
    layer = _mask_some(_comera_linear())
    x = torch.randn(6, 24, dtype=torch.float64)
    before = layer(x)
    before.sum().backward()
    for k, vector in enumerate(layer.rank_vectors):
        assert layer.masks[k].tolist() == [float(j != 1) for j in range(len(vector))]
        assert vector.grad[1] == 0
        assert vector.grad[0] != 0
        assert layer.cores[k].grad[..., 1].abs().max() == 0
        layer.cores[k].data[..., 1].normal_()
    torch.testing.assert_close(layer(x), before)


def test_comera_linear_keeps_the_input_the_narrow_intermediate_and_products_of_cores():
    layer, tokens = _comera_linear(), 1009
    x = torch.randn(tokens, 24, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tuple(tensor.shape)), lambda _: None):
        layer(x)
    assert Counter(shape for shape in kept if tokens in shape) == {(tokens, 24): 1, (tokens, 5): 1}
    products = {(24, 5), (5, 24), (3, 2, 4), (4, 3, 2)}
    assert products <= set(kept)
    largest_core = max(core.numel() for core in layer.cores)
    assert all(prod(shape) <= largest_core for shape in set(kept) - products if tokens not in shape)


def test_comera_linear_multiplies_in_the_dtype_of_autocast():
    layer = _comera_linear()
    x = torch.randn(7, 24, requires_grad=True)
    expected = layer(x)
    parameters = [x, *layer.parameters()]
    gradients = torch.autograd.grad(expected, parameters, torch.ones_like(expected))
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    actual = torch.autograd.grad(y, parameters, torch.ones_like(y))
    for mine, theirs in zip((y, *actual), (expected, *gradients), strict=True):
        assert (mine.float() - theirs).abs().max() <= 3e-2 * theirs.abs().max()


@pytest.mark.parametrize("ids", [[0, 35, 7, 7, 13], [[1, 2], [34, 2]], []], ids=str)
def test_comera_embedding_looks_rows_of_its_masked_table_up(ids):
    embedding = _mask_some(ComeraEmbedding(*TTM))
    table = _table(embedding.cores, _active_vectors(embedding))
    ids = torch.tensor(ids, dtype=torch.long)
    _assert_same(embedding(ids), table[ids], list(embedding.parameters()))


def test_comera_embedding_multiplies_for_every_token_also_for_repeated_ones():
    batches = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.bmm.default:
                batches.append(args[0].shape[0])
            return function(*args, **(kwargs or {}))

    with Products():
        ComeraEmbedding(*TTM)(torch.full((50,), 3))
    assert batches == [50]


def test_the_penalty_is_the_mean_over_the_active_entries_of_all_layers():
    model = torch.nn.ModuleList([_comera_linear(), ComeraEmbedding(*TTM)])
    for train, value in zip(model, (0.5, 2.0), strict=True):
        for vector in train.rank_vectors:
            vector.data.fill_(value)
            vector.data[0] = 0.0
        train.masked_cores()
    active = (3 + 4 + 5 + 4 + 2 - 5, 4 + 6 + 5 - 3)
    expected = (0.5 * active[0] + 2.0 * active[1]) / sum(active)
    penalty = rank_penalty(model)
    assert penalty.item() == pytest.approx(expected)
    penalty.backward()
    gradient = model[0].rank_vectors[0].grad
    assert gradient.tolist() == pytest.approx([0.0, 1 / sum(active), 1 / sum(active)])


def test_the_size_counts_active_ranks_on_both_sides_of_every_core():
    model = torch.nn.ModuleList([_comera_linear(), ComeraEmbedding(*TTM)])
    assert compressed_size(model) == sum(core.numel() for train in model for core in train.cores)
    for train in model:
        _mask_some(train).masked_cores()
    linear = 1 * 3 * 2 + 2 * 2 * 3 + 3 * 4 * 4 + 4 * 4 * 3 + 3 * 3 * 1 + 1 * 2 * 1
    embedding = 1 * (3 * 2) * 3 + 3 * (2 * 3) * 5 + 5 * (2 * 2) * 4 + 4 * (3 * 2) * 1
    assert compressed_size(model) == linear + embedding


@pytest.mark.parametrize("modes", [TTM, ((5, 4), (3, 2), (1, 4, 1)), ((7,), (3,), (1, 1))], ids=str)
def test_plain_lookup_returns_rows_of_its_table(modes):
    embedding = PlainTTMEmbedding(*modes).double()
    table = _table(embedding.cores, [torch.ones(core.shape[-1], dtype=torch.float64) for core in embedding.cores])
    ids = torch.tensor([[0, len(table) - 1], [2, 2]])
    _assert_same(embedding(ids), table[ids], list(embedding.parameters()))


def test_tensorly_layer_is_a_dense_layer_of_its_factors():
    pytest.importorskip("tltorch", reason="tensorly-torch is not installed")
    layer = tensorly_layer.tensorly_linear(24, 30, 2, rank=7).double()
    first_MNr, second_rMN = (factor.squeeze() for factor in layer.weight.factors)
    assert (first_MNr.shape, second_rMN.shape) == ((5, 6, 7), (7, 6, 4))
    x = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
    weight_MN = torch.einsum("mnr,rpq->mpnq", first_MNr, second_rMN).reshape(30, 24)
    _assert_same(layer(x), x @ weight_MN.T, [x, *layer.parameters()])


def test_tensorly_ranks_are_clipped_to_what_cores_can_fill():
    pytest.importorskip("tltorch", reason="tensorly-torch is not installed")
    layer = tensorly_layer.tensorly_linear(8, 8, 3, rank=100)
    assert tuple(layer.rank) == (1, 4, 4, 1)


def test_a_missing_tensorly_is_one_sentence(monkeypatch):
    monkeypatch.setattr(tensorly_layer, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt tensorly tensorly-torch"):
        tensorly_layer.tensorly_linear(8, 8, 3, 2)
