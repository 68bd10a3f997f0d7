"""The recommendation model against loops over its definition, and tensorized against dense."""

import math
from copy import deepcopy
from itertools import combinations

import pytest
import torch
from fake_gpu import fake_gpu
from operations import Operations
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from comera_dist.config.optim_section import Optim
from comera_dist.config.reader import read_config
from comera_dist.costs.parts import stored_parts
from comera_dist.formats.convert import densify
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.models.dlrm.model import DLRM
from comera_dist.models.dlrm.plan import DLRMFacts
from comera_dist.models.family import plan_model
from comera_dist.optim.groups import parameter_groups

ROWS = (300, 3, 40)
TINY = [
    "model.kind=dlrm",
    "model.embedding_dim=8",
    "model.bottom=[12,10]",
    "model.top=[9,7]",
    "tensor.order=2",
    "tensor.rank=3",
    "tensor.embedding_order=2",
    "tensor.embedding_rank=3",
    "tensor.embedding_min_rows=10",
    "train.steps=1",
    "train.batch_size=4",
]
KINDS = {
    "dense": ["model.format=dense"],
    "tables": [],
    "tensor": ["model.format=tensor"],
}


def plan(*overrides, dense_features=5, rows=ROWS):
    config = read_config(None, [*TINY, *overrides])
    return config, plan_model(config, DLRMFacts(dense_features, rows))


def build(*overrides, seed=0, **facts):
    _, layers = plan(*overrides, **facts)
    return DLRM(layers, torch.Generator().manual_seed(seed))


def shaken(model):
    """The model with random numbers added everywhere: no gate is at the value that changes nothing."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator)
    return model


def clicks(count=9, dense_features=5, rows=ROWS):
    """Numbers, categories and targets, of which two are ignored."""
    generator = torch.Generator().manual_seed(1)
    dense = torch.randn(count, dense_features, generator=generator)
    categories = torch.stack([torch.randint(size, (count,), generator=generator) for size in rows], dim=1)
    targets = torch.randint(2, (count,), generator=generator)
    targets[[1, -1]] = -100
    return dense, categories, targets


def logit_by_definition(twin, numbers, categories):
    """One row's logit of a dense model, number by number."""

    def layer(linear, x, activation):
        weights = zip(linear.weight.tolist(), linear.bias.tolist(), strict=True)
        return [activation(sum(w * n for w, n in zip(row, x, strict=True)) + b) for row, b in weights]

    def relu(number):
        return max(0.0, number)

    x = numbers.tolist()
    for linear in twin.bottom:
        x = layer(linear, x, relu)
    vectors = [table.weight[category].tolist() for table, category in zip(twin.tables, categories, strict=True)]
    vectors = [x, *vectors] if len(twin.bottom) else vectors
    # Pairs in the order of a lower triangle's rows.
    pairs = sorted(combinations(range(len(vectors)), 2), key=lambda pair: (pair[1], pair[0]))
    x = x[: 0 if not len(twin.bottom) else None]
    x = x + [sum(a * b for a, b in zip(vectors[i], vectors[j], strict=True)) for i, j in pairs]
    for linear in twin.top[:-1]:
        x = layer(linear, x, relu)
    return layer(twin.top[-1], x, float)[0]


@pytest.mark.parametrize("dense_features", [5, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_follow_the_definition(kind, dense_features):
    model = shaken(build(*KINDS[kind], dense_features=dense_features))
    dense, categories, _ = clicks(dense_features=dense_features)
    with torch.no_grad():
        logits = model(dense, categories)
        twin = densify(deepcopy(model))
        expected = [logit_by_definition(twin, *row) for row in zip(dense, categories, strict=True)]
    torch.testing.assert_close(logits, torch.tensor(expected), rtol=1e-4, atol=1e-5)
    assert logits.std() > 0.1  # rows differ by far more than the tolerance


def test_the_loss_is_the_log_loss_of_the_rows_that_count():
    model = shaken(build())
    dense, categories, targets = clicks()
    with torch.no_grad():
        probabilities = model(dense, categories).double().sigmoid()
        loss = model(dense, categories, targets)
    expected = -sum(
        math.log(p if t == 1 else 1 - p)
        for p, t in zip(probabilities.tolist(), targets.tolist(), strict=True)
        if t != -100
    )
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["tables", "tensor"])
def test_tensorized_is_its_densified_twin(kind):
    """Compares losses, and gradients of cores with those of the dense matrix, carried through to_dense."""
    model = shaken(build(*KINDS[kind]))
    twin = densify(deepcopy(model))
    assert all(isinstance(table, nn.Embedding) for table in twin.tables)
    batch = clicks()
    losses = [m(*batch) for m in (model, twin)]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-5)
    dense = dict(
        zip(dict(twin.named_parameters()), torch.autograd.grad(losses[1], list(twin.parameters())), strict=True)
    )
    ours = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(losses[0], list(model.parameters())), strict=True)
    )
    compared = 0
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        expected = {key: dense.get(f"{name}.{key}") for key in own}
        if hasattr(module, "to_dense"):
            cores = {key: parameter for key, parameter in own.items() if key != "bias"}
            carried = torch.autograd.grad(module.to_dense(), list(cores.values()), dense[f"{name}.weight"])
            expected |= zip(cores, carried, strict=True)
        for key in own:
            torch.testing.assert_close(ours[f"{name}.{key}"], expected[key], rtol=1e-3, atol=1e-5)
            compared += 1
    assert compared == len(ours)


def test_a_row_that_only_fills_up_the_batch_changes_nothing():
    model = shaken(build())
    dense, categories, targets = clicks()
    kept = targets != -100
    losses = [model(dense, categories, targets), model(dense[kept], categories[kept], targets[kept])]
    torch.testing.assert_close(*losses)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    for with_rows, without in zip(*gradients, strict=True):
        torch.testing.assert_close(with_rows, without, rtol=1e-4, atol=1e-6)


def test_a_measure_holds_the_loss_the_right_guesses_and_what_an_auc_is_made_of():
    model = shaken(build())
    dense, categories, _ = clicks(64)
    with torch.no_grad():
        logits = model(dense, categories)
        probabilities = logits.sigmoid()
        assert ((probabilities > 0.5) & (probabilities < 0.6)).any()
        targets = (probabilities > 0.5).long()
        targets[:5] = 1 - targets[:5]
        targets[10:13] = -100
        figures = model.measure(dense, categories, targets)
        assert torch.equal(figures["loss"], model(dense, categories, targets))
    assert torch.equal(figures["scores"], logits)
    assert torch.equal(figures["labels"], targets)
    assert figures["correct"].item() == 64 - 5 - 3


@pytest.mark.parametrize("facts", [{}, {"dense_features": 0}, {"rows": (300,)}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_stored_numbers_are_those_of_the_plan(kind, facts):
    config, layers = plan(*KINDS[kind], **facts)
    model = DLRM(layers, generator=None)
    assert sum(p.numel() for p in model.parameters()) == sum(stored_parts(config, layers).values())


@pytest.mark.parametrize("kind", KINDS)
def test_weights_start_at_the_size_of_the_authors_code(kind):
    model = densify(build(*KINDS[kind], "model.bottom=[40]", "model.top=[60]", "tensor.rank=8"))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            std = math.sqrt(2 / (module.in_features + module.out_features))
            assert module.weight.square().mean().sqrt().item() == pytest.approx(std, rel=0.3), name
            if module.out_features > 30:
                assert module.bias.std().item() == pytest.approx(module.out_features**-0.5, rel=0.4), name
        if isinstance(module, nn.Embedding) and module.num_embeddings > 30:
            mean_square = 1 / (3 * module.num_embeddings)
            assert module.weight.square().mean().item() == pytest.approx(mean_square, rel=0.3), name
    if kind == "dense":
        bound = 300**-0.5
        assert 0.9 * bound < model.tables[0].weight.abs().max() <= bound


def test_same_seed_same_weights():
    first, again, other = (dict(build(seed=s).named_parameters()) for s in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if "gate" not in name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_generator_draws_no_table_and_is_there_to_be_loaded(kind):
    with Operations() as drawn:
        model = shaken(build(*KINDS[kind]))
    _, layers = plan(*KINDS[kind])
    with Operations() as not_drawn:
        empty = DLRM(layers, generator=None)
    assert ("linalg_qr" in drawn.names) == (kind != "dense")  # a core is drawn as isometries
    assert "linalg_qr" not in not_drawn.names
    empty.load_state_dict(model.state_dict())
    dense, categories, _ = clicks()
    assert torch.equal(empty(dense, categories), model(dense, categories))


def test_in_bf16_the_loss_is_fp32_and_near():
    model = shaken(build("model.format=tensor"))
    batch = clicks()
    with torch.no_grad():
        exact = model(*batch)
        with torch.autocast("cpu", torch.bfloat16):
            loss, logits = model(*batch), model(*batch[:2])
    assert loss.dtype == logits.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind):
    """A row is clicked where its category of 40 is odd, or its first number large."""
    dense, categories, _ = clicks(64)
    targets = ((categories[:, 2] % 2 == 1) | (dense[:, 0] > 1)).long()
    model = build(*KINDS[kind])
    optimizer = torch.optim.AdamW(parameter_groups(model, Optim(lr=1e-2)))
    losses = []
    for _ in range(60):
        loss = model(dense, categories, targets) / len(targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_in_a_pass_depends_on_values(kind):
    """On a GPU; on a CPU ids are checked, and the number of distinct ones is asked for."""
    model = build(*KINDS[kind])
    with fake_gpu() as mode:
        batch = [mode.from_tensor(tensor) for tensor in clicks()]
        gradients = torch.autograd.grad(model(*batch), list(model.parameters()))
        figures = model.measure(*batch)
    assert all(isinstance(tensor, FakeTensor) for tensor in (*gradients, *figures.values()))


def test_a_table_of_ten_million_rows_needs_memory_for_its_cores_only():
    """No tensor has a number per row: neither a stored one nor one made in building, forward or backward."""
    rows = 10_131_227
    overrides = ["model.embedding_dim=32", "tensor.embedding_order=4", "tensor.embedding_rank=8"]
    config, layers = plan(*overrides, rows=(rows, 300))
    with LargestTensor() as largest:
        model = DLRM(layers, torch.Generator().manual_seed(0))
        dense, categories, targets = clicks(64, rows=(rows, 300))
        categories[0, 0] = rows - 1
        model(dense, categories, targets).backward()
    table = model.tables[0]
    assert isinstance(table, TTMEmbedding)
    held = [*model.parameters(), *model.buffers()]
    assert sum(tensor.numel() for tensor in held) == sum(stored_parts(config, layers).values()) + len(model.pair_P)
    assert layers["tables.0"].parameters < rows / 100
    assert largest.numbers < rows / 10
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert all(core.grad.any() for core in table.cores)


def test_rows_of_a_table_of_ten_million_are_what_its_cores_say():
    rows = 10_131_227
    model = build("tensor.embedding_order=3", rows=(rows,))
    table, ids = model.tables[0], torch.tensor([0, 1, 123_456, rows - 1])
    with torch.no_grad():
        found = table(ids)
        for row, number in zip(found, ids.tolist(), strict=True):
            expected = torch.ones(1, 1)
            for mode, core in zip(reversed(table.plan.in_modes), reversed(table.gated_cores()), strict=True):
                number, digit = divmod(number, mode)
                expected = torch.einsum("aeb,bf->aef", core[:, digit], expected).flatten(1)
            torch.testing.assert_close(row, expected.flatten()[: table.embedding_dim], rtol=1e-4, atol=1e-8)
