"""The captured step without a GPU: what it captures is run as it is, beside torch's own training step."""

import copy
import shutil

import pytest
import torch
from support import FACTS, TINY, VOCAB
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.data.windows import TextBatch
from comera_dist.errors import TrainingError
from comera_dist.models.family import build_model, plan_model
from comera_dist.optim.build import build_optimizer, open_state
from comera_dist.optim.groups import set_learning_rate
from comera_dist.runtime import graphs
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.static_step import WholeStep

CPU = torch.device("cpu")
ALONE = Processes(0, 1, CPU)


class Regression(nn.Module):
    """Two layers with dropout between them; a parameter that nothing depends on."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(5, 7), nn.Linear(7, 3), nn.Parameter(torch.ones(2))
        self.dropout = nn.Dropout(dropout)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, x_BN, y_BM):
        return (self.second(self.dropout(self.first(x_BN))) - y_BM).square().sum()


def batches(count, seed, rows=4):
    generator = torch.Generator().manual_seed(seed)
    return [
        TextBatch(torch.randn(rows, 5, generator=generator), torch.randn(rows, 3, generator=generator))
        for _ in range(count)
    ]


def whole_step(model, accumulation=2, grad_clip=1.0, processes=ALONE, capture=None):
    optimizer = build_optimizer(model, Config().optim)
    return WholeStep(model, accumulation, processes, capture, optimizer, grad_clip), optimizer


def plain_step(model, optimizer, given, scale, grad_clip=1.0):
    """The same by backward(): loss and gradient norm."""
    optimizer.zero_grad()
    total = 0.0
    for batch in given:
        loss = model(*batch)
        (loss * scale / len(given)).backward()
        total += loss.detach()
    model.unused.grad = torch.zeros(2)
    norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip or float("inf"))
    optimizer.step()
    return float(total), float(norm)


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("grad_clip", [0.0, 1.0])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_static_step_is_a_plain_step_bit_for_bit(dropout, grad_clip):
    ours, theirs = Regression(dropout), Regression(dropout)
    step, mine = whole_step(ours, grad_clip=grad_clip)
    other = build_optimizer(theirs, Config().optim)
    for number in range(4):
        given, scale = batches(2, seed=number), 0.1 + number
        torch.manual_seed(number)
        found = float(step.gradients(given, scale)), step.update()
        torch.manual_seed(number)
        assert found == plain_step(theirs, other, given, scale, grad_clip)
        assert same(ours, theirs)
        # Between steps a validation is in evaluation mode.
        ours.eval()
    for a, b in zip(open_state(mine), open_state(other), strict=True):
        assert torch.equal(a, b)


def test_a_resumed_optimizer_goes_on():
    ours, theirs = Regression(), Regression()
    (step, mine), other = whole_step(ours), build_optimizer(theirs, Config().optim)
    plain_step(ours, mine, batches(2, seed=0), 0.2)
    plain_step(theirs, other, batches(2, seed=0), 0.2)
    step.gradients(batches(2, seed=1), 0.2)
    step.update()
    plain_step(theirs, other, batches(2, seed=1), 0.2)
    assert same(ours, theirs)


def test_gradients_without_an_update_leave_no_trace():
    """A step whose loss is not finite ends there."""
    ours, theirs = Regression(), Regression()
    (step, _), other = whole_step(ours), build_optimizer(theirs, Config().optim)
    for given, updates in ((batches(2, 0), True), ([TextBatch(x * torch.nan, y) for x, y in batches(2, 1)], False)):
        loss = step.gradients(given, 0.2)
        assert loss.isfinite() == updates
        if updates:
            step.update()
            plain_step(theirs, other, given, 0.2)
        assert same(ours, theirs)
    step.gradients(batches(2, 2), 0.2)
    step.update()
    plain_step(theirs, other, batches(2, 2), 0.2)
    assert same(ours, theirs)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x, y: TextBatch(x[:3], y), "inputs_BS is (3, 5) torch.float32 and the captured step takes (4, 5)"),
        (
            lambda x, y: TextBatch(x, y.double()),
            "targets_BS is (4, 3) torch.float64 and the captured step takes (4, 3)",
        ),
    ],
)
def test_another_shape_or_dtype_is_an_error_that_names_the_tensor(spoil, words):
    model = Regression()
    step, _ = whole_step(model)
    step.gradients(batches(2, 0), 1.0)
    given = batches(2, 1)
    with pytest.raises(TrainingError) as caught:
        step.gradients([given[0], spoil(*given[1])], 1.0)
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith("batches of one kind, or set train.cuda_graphs=false")


def test_a_parameter_of_another_shape_is_an_error_that_names_it():
    model = Regression()
    step, _ = whole_step(model)
    step.gradients(batches(2, 0), 1.0)
    model.second.bias.data = model.second.bias.data[:2]
    with pytest.raises(TrainingError, match=r"^second.bias is \(2,\) torch.float32 and was \(3,\) torch.float32 when"):
        step.gradients(batches(2, 1), 1.0)


def move_a_parameter(model, optimizer):
    model.second.weight.data = model.second.weight.data.clone()


def move_the_state(model, optimizer):
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].clone()


@pytest.mark.parametrize(("move", "said"), [(move_a_parameter, "second.weight"), (move_the_state, "The optimizer's")])
def test_what_moved_at_stage_0_is_captured_again_and_said(move, said, capsys):
    captures = []

    def capture(function, pool):
        captures.append(function.__name__)
        return function

    ours, theirs = Regression(), Regression()
    (step, mine), other = whole_step(ours, capture=capture), build_optimizer(theirs, Config().optim)
    for number in range(4):
        if number == 2:
            move(ours, mine)
        step.gradients(batches(2, number), 0.2)
        step.update()
        plain_step(theirs, other, batches(2, number), 0.2)
    assert same(ours, theirs)
    assert captures[:3] == ["_micro_step", "_point_and_clip", "_update"]
    assert captures[3:] == (["_micro_step", "_update"] if said == "second.weight" else ["_update"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{said} ")
    assert "has moved in memory" in lines[0]


def test_warming_up_puts_back_what_it_changes_and_the_random_numbers():
    numbers = torch.zeros(3)
    torch.manual_seed(5)
    replay = graphs.captured(lambda: numbers.add_(torch.rand(3)), CPU, [numbers], pool=None)
    assert torch.equal(numbers, torch.zeros(3))
    replay()
    torch.manual_seed(5)
    assert torch.equal(numbers, torch.rand(3))


def test_learning_rates_that_are_tensors_are_filled_in_place():
    rate = torch.tensor(0.0)
    groups = [{"lr": rate, "lr_scale": 2.0}, {"lr": 0.0, "lr_scale": 3.0}]
    set_learning_rate(groups, 0.25)
    assert groups[0]["lr"] is rate
    assert (float(rate), groups[1]["lr"]) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.zero_stage=3"], "ZeRO stage 3 moves"),
        (["deepspeed.wall_clock_breakdown=true"], "deepspeed.wall_clock_breakdown"),
        (["deepspeed.communication_data_type=bf16", "train.zero_stage=0"], "deepspeed.communication_data_type"),
        (["train.activation_checkpointing=block"], "set train.activation_checkpointing=none"),
        (["deepspeed.communication_data_type=bf16", "train.zero_stage=2"], None),
        (["deepspeed.zero_optimization={overlap_comm: true}"], None),
        (["train.zero_stage=0"], None),
    ],
)
def test_what_stands_against_graphs_on_a_gpu(overrides, words):
    found = graphs.obstacle(read_config(None, [*TINY, *overrides]), device_captures=True)
    assert found is None if words is None else words in found


def test_a_cpu_stands_against_graphs_and_is_told_once_a_run(capsys):
    for name in ("a", "a", "b"):
        config = read_config(None, [*TINY, "train.cuda_graphs=true", f"run.name=told_{name}"])
        assert not graphs.usable(config, ALONE)
    said = "train.cuda_graphs = true has no effect: the run has no CUDA device; start it on one.\n"
    assert capsys.readouterr().out == said * 2


def test_without_the_setting_nothing_is_said(capsys):
    assert not graphs.usable(read_config(None, TINY), ALONE)
    assert capsys.readouterr().out == ""


def decoder(*overrides):
    config = read_config(None, [*TINY, "model.layers=1", *overrides])
    return config, build_model(config.model, plan_model(config, FACTS), torch.Generator().manual_seed(0))


def loss_and_gradients(model, seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = (torch.randint(VOCAB, (2, 16), generator=generator) for _ in range(2))
    loss = model(tokens, targets)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize(
    ("backend", "formats"),
    [
        ("aot_eager", "head: dense"),
        ("inductor", "head: tensor"),
        ("aot_eager", "rest: block_train"),
        ("aot_eager", "rest: sltrain"),
        ("aot_eager", "attention: shared, mlp: shared, head: dense"),
    ],
)
def test_the_compiled_decoder_is_one_graph_and_the_same_function(backend, formats):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("inductor compiles its kernels for CPUs with g++, which is not installed")
    config, model = decoder(f"model.format={{embedding: dense, {formats}}}")
    expected = loss_and_gradients(copy.deepcopy(model))
    torch._dynamo.utils.counters.clear()
    graphs.compile_model(model, config, ALONE, backend=backend)
    for found, wanted in zip(loss_and_gradients(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_every_rebuilt_model_is_compiled_anew():
    """More often than torch compiles one function for other shapes."""
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    class Square(nn.Module):
        def forward(self, x):
            return x * x

    for size in range(1, 12):
        model = Square()
        graphs.compile_model(model, Config(), ALONE, backend=backend)
        model(torch.ones(size))
    assert len(compiled) == 11
