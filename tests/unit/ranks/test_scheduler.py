"""Ranks adapt in a loop of the user's own."""

import io
import pickle
from copy import deepcopy

import pytest
import torch
from torch import nn

from comera_dist.errors import ConfigError, RankDivergence
from comera_dist.formats.convert import LinearFormat, TableFormat, tensorize
from comera_dist.optim.combined import gate_adamw
from comera_dist.ranks.scheduler import RankScheduler, adamw

KEYS = {"sync_every": 4, "late_start": 0.2, "late_end": 0.6, "target_fraction": 0.5}
STEPS = 40


class Classifier(nn.Module):
    """A module of the user's own: a bag of tokens, two layers, and one that is called under two names."""

    def __init__(self):
        super().__init__()
        self.table, self.hidden = nn.Embedding(30, 16), nn.Linear(16, 24)
        self.again = self.hidden
        self.out = nn.Linear(24, 4)

    def forward(self, tokens):
        return self.out(torch.relu(self.again(self.table(tokens).mean(1))))


def begun(format="tensor", **keys):
    torch.manual_seed(0)
    rank = {"tensor": {"order": 2, "rank": 8}, "block_train": {"rank": 3}, "bottleneck": {"rank": 8}}[format]
    model = tensorize(
        Classifier(), {"hidden": LinearFormat(format, **rank), "table": TableFormat("tensor", order=2, rank=8)}
    )
    optimizer = adamw(model, lr=0.02)
    return model, optimizer, RankScheduler(model, optimizer, STEPS, **KEYS | keys)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(30, (32, 5), generator=generator)
    return tokens, tokens.sum(1) % 4


def train(model, optimizer, scheduler, first=0, last=STEPS):
    losses, records = [], []
    for step in range(first, last):
        tokens, targets = batch(step)
        loss = nn.functional.cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        before = model(tokens).detach()
        record = scheduler.step(loss)
        losses.append(float(loss.detach()))
        if record is not None:
            records.append(record)
            if not record["cut"]:
                torch.testing.assert_close(model(tokens).detach(), before, atol=1e-4, rtol=1e-4)
    return losses, records


@pytest.mark.parametrize("format", ["tensor", "block_train", "bottleneck"])
def test_a_model_is_cut_to_its_size_in_a_loop_of_its_own(format):
    model, optimizer, scheduler = begun(format)
    size = sum(parameter.numel() for parameter in model.parameters())
    losses, records = train(model, optimizer, scheduler)
    assert sum(losses[-8:]) < sum(losses[:8])
    assert sum(parameter.numel() for parameter in model.parameters()) < size
    assert [record["stage"] for record in records][-1] == "settled"
    assert "Target" in scheduler.verdict()
    assert model.again is model.hidden
    members = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(parameter) for parameter in members} == {id(parameter) for parameter in model.parameters()}
    assert set(optimizer.state) == set(members)
    assert all(optimizer.state[p][kind].shape == p.shape for p in members for kind in ("exp_avg", "exp_avg_sq"))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"hidden": nn.Linear(16, 24)})])

    def forward(self, x):
        return self.layers[0]["hidden"](x)


def test_layers_that_may_all_go_leave_a_model_without_gates():
    torch.manual_seed(0)
    model = tensorize(Blocks(), {"layers.*": LinearFormat("tensor", order=2, rank=4)})
    optimizer = adamw(model, lr=0.02)
    scheduler, records = RankScheduler(model, optimizer, STEPS, sync_every=4, removable=["layers.*"]), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.zeros(1, 16)).square().mean()  # no gate ever matters
        loss.backward()
        optimizer.step()
        records.append(scheduler.step(loss))
    assert (records[-1]["size"], records[-1]["ranks"]) == (0, {})
    assert [name for name, _ in model.named_parameters()] == ["layers.0.hidden.bias"]


def test_a_frozen_bias_stays_frozen_when_its_layer_is_cut():
    model, optimizer, scheduler = begun()
    before = model.hidden.bias.requires_grad_(False).clone()
    _, records = train(model, optimizer, scheduler)
    assert sum(record["cut"] for record in records)
    assert not model.hidden.bias.requires_grad
    assert torch.equal(model.hidden.bias, before)


def test_steps_that_were_skipped_cut_nothing():
    model, optimizer, scheduler = begun(target_fraction=None, late_start=0.3, late_end=0.7)  # the defaults
    ranks = dict(scheduler.resizable)
    assert [scheduler.step(torch.tensor(1.0)) for _ in range(8)] == [None] * 8  # the optimizer made no step
    assert scheduler.resizable == ranks
    assert train(model, optimizer, scheduler, last=4)[1][0]["cut"] == 0


def through_file(*states):
    """States as `torch.load` reads them with its defaults: it refuses objects of classes that it does not know."""
    torch.save(states, file := io.BytesIO())
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("moments", ["fp32", "bf16", "8bit"])
def test_an_optimizer_goes_on_from_its_saved_state(moments):
    def steps(model, optimizer, gradients):
        for gradient in gradients:
            for parameter in model.parameters():
                parameter.grad = gradient * torch.linspace(-1, 1, parameter.numel()).view_as(parameter)
            optimizer.step()

    def begun():
        torch.manual_seed(0)
        model = tensorize(Classifier(), {"hidden": LinearFormat("tensor", order=2, rank=8)})
        return model, adamw(model, 0.1, moments=moments)

    straight, first, again = begun(), begun(), begun()
    steps(*straight, [1.0, -0.3, 0.2])
    steps(*first, [1.0, -0.3])
    for part, state in zip(again, through_file(*(part.state_dict() for part in first)), strict=True):
        part.load_state_dict(state)
    steps(*again, [0.2])
    for expected, found in zip(straight[0].parameters(), again[0].parameters(), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.parametrize("kind", ["adamw", "muon", "spectral", "apollo"])
@pytest.mark.parametrize("copied", [deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["copy", "pickle"])
def test_a_copy_of_an_optimizer_steps_as_the_optimizer_does(copied, kind):
    def step(model, optimizer):
        def closure():
            optimizer.zero_grad()
            loss = model["layers"][0](torch.linspace(-1, 1, 6)).square().sum()
            loss.backward()
            return loss

        return optimizer.step(closure)

    torch.manual_seed(0)
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))])})
    tensorize(model, {"layers.0.1": LinearFormat("low_rank", rank=2)})
    optimizer = adamw(model, lr=0.1, kind=kind)
    torch.optim.lr_scheduler.ConstantLR(optimizer)  # which replaces the function `step` of this optimizer
    pressing = gate_adamw(optimizer)
    pressing.pressure = torch.tensor(0.5, dtype=torch.float64)
    pressing.gate_weights = {gate: torch.ones_like(gate) for gate in model["layers"][0][1].gates}
    step(model, optimizer)
    twin = copied((model, optimizer))
    losses = [[step(*one).item() for _ in range(2)] for one in ((model, optimizer), twin)]
    assert losses[0] == losses[1]
    assert losses[0][1] != losses[0][0]
    through_file(twin[1].state_dict())  # without objects of ours, as the state of the optimizer itself
    for found, expected in zip(twin[0].parameters(), model.parameters(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_group_that_is_added_to_an_optimizer_is_refused(kind):
    optimizer = adamw(nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(nn.Linear(4, 4))])}), lr=0.1, kind=kind)
    with pytest.raises(ConfigError, match="call adamw\\(\\) when the model has all of its parameters"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})


def test_training_goes_on_from_saved_states():
    straight = begun()
    losses, records = train(*straight)
    first = begun()
    train(*first, last=21)
    model, optimizer, scheduler = first
    saved = through_file(model.state_dict(), optimizer.state_dict(), scheduler.state_dict())
    model, optimizer, scheduler = begun()
    scheduler.load_state_dict(saved[2])
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert train(model, optimizer, scheduler, first=21) == (losses[21:], [r for r in records if r["step"] > 21])
    for name, parameter in straight[0].named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))


def test_mistakes_are_sentences():
    model, optimizer, _ = begun()
    with pytest.raises(ConfigError, match="keeps narrow moments, which a RankScheduler cannot cut; set moments='fp32'"):
        RankScheduler(model, adamw(model, 1e-3, moments="8bit"), 10)
    with pytest.raises(ConfigError, match="the optimizer is a SGD, which has no gates; make it with adamw"):
        RankScheduler(model, torch.optim.SGD(model.parameters()), 10)
    with pytest.raises(ConfigError, match="a layer with gates has a parameter that the optimizer does not have"):
        RankScheduler(model, adamw(Classifier(), lr=0.1), 10)
    with pytest.raises(ConfigError, match=r"ranks\.target_fraction = 2 is not possible"):
        RankScheduler(model, optimizer, 10, target_fraction=2)
    with pytest.raises(ConfigError, match=r"did you mean ranks\.sync_every"):
        RankScheduler(model, optimizer, 10, sync_evry=2)
    plain = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(ConfigError, match="no layer has ranks that can change"):
        RankScheduler(plain, adamw(plain, lr=0.1), 10, sync_every=5)
    with pytest.raises(ConfigError, match="the ranks of table adapt, but the optimizer does not press on its gates"):
        RankScheduler(model, adamw(model, 0.1, adapted=["hidden"]), 10, sync_every=5)
    layer = LinearFormat("low_rank", rank=2).plan(6, 6).build(1.0, torch.Generator())
    with pytest.raises(ConfigError, match=r"the model is itself a TTLinear, .*such as nn\.Sequential\(layer\)"):
        RankScheduler(layer, adamw(layer, lr=0.1), 10, sync_every=5)
    blocks = nn.ModuleDict({"layers": nn.ModuleList([nn.Sequential(nn.Linear(6, 6), layer)])})
    with pytest.raises(ConfigError, match=r"a RankScheduler cannot cut; leave kind out of adamw\(\)"):
        RankScheduler(blocks, adamw(blocks, lr=0.1, kind="muon"), 10, sync_every=5)
    frozen = begun()[0].requires_grad_(False)
    with pytest.raises(ConfigError, match="a layer whose ranks adapt has frozen gates"):
        RankScheduler(frozen, adamw(frozen, lr=0.1), 10, sync_every=5)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"lr": -1.0}, r"adamw\(\): lr: input should be greater than 0"),
        ({"weight_dekay": 0.1}, r"adamw\(\): weight_dekay: extra inputs are not permitted"),
        ({"kind": "muonn"}, r"adamw\(\): kind: expected one of adamw, "),
        ({"adapted": "hidden"}, r"adapted = 'hidden' is one text, expected several patterns; give \['hidden'\]"),
    ],
    ids=str,
)
def test_impossible_settings_of_an_optimizer_are_sentences(keys, sentence):
    with pytest.raises(ConfigError, match=sentence):
        adamw(nn.Linear(2, 2), **{"lr": 0.1, **keys})
    with pytest.raises(ConfigError, match="the model has no parameters"):
        adamw(nn.ReLU(), lr=0.1)


def test_hooks_of_layers_outlive_a_cut():
    model, optimizer, scheduler = begun()
    calls, first = [], model.hidden
    handle = first.register_forward_hook(lambda *_: calls.append(1))
    _, records = train(model, optimizer, scheduler)
    assert any(record["cut"] for record in records)
    assert model.hidden is not first
    calls.clear()
    model(batch(0)[0])
    assert len(calls) == 1
    handle.remove()
    model(batch(0)[0])
    assert len(calls) == 1


def test_gates_that_are_not_finite_are_named():
    model, optimizer, scheduler = begun()
    train(model, optimizer, scheduler, last=KEYS["sync_every"] - 1)
    name, gate = next((name, p) for name, p in model.hidden.named_parameters() if name.startswith("gate_"))
    gate.data[3] = torch.nan
    bond = name.removeprefix("gate_")
    with pytest.raises(RankDivergence, match=f"gate 3 on bond {bond} of hidden is nan, expected a finite number"):
        scheduler.step(torch.ones(()))
