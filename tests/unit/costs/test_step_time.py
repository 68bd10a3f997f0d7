"""Times of a step against layers that are computed by hand."""

from dataclasses import replace

import pytest
import torch
from several_matrices import matrices, optimizer_of, set_gradients
from support import FACTS, TINY
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.config.optim_section import Optim
from comera_dist.config.reader import read_config
from comera_dist.config.registry import OPTIMIZERS
from comera_dist.costs.exchange import Cluster
from comera_dist.costs.machines import MACHINES
from comera_dist.costs.operations import Operation, Operations, Work
from comera_dist.costs.step_costs import step_costs
from comera_dist.costs.step_time import operation_seconds, step_time
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.models.family import plan_model
from comera_dist.optim.base import newton_schulz_flops
from comera_dist.optim.spectral_descent import STEPS, newton_schulz

T, N, M = 64, 32, 48
SLOW = replace(MACHINES["h100"], flops={2: 2e9, 4: 1e9}, bandwidth=1e8, stream=1e8, launch=1e-9)


def test_a_linear_layer_is_three_products():
    with FakeTensorMode(), Operations() as counted:
        layer, x = nn.Linear(N, M, bias=False), torch.zeros(T, N, requires_grad=True)
        counted.work.clear()
        y = layer(x)
        y.backward(torch.zeros_like(y))
    product = Operation(2 * T * N * M, 4 * (T * N + N * M + T * M), 4)
    products = {operation: count for operation, count in counted.work.items() if operation.flops}
    assert products == {product: 3}
    assert operation_seconds(product, SLOW) == max(2 * T * N * M / 1e9, 4 * (T * N + N * M + T * M) / 1e8)


def test_views_and_questions_are_no_work_and_changes_in_place_read_and_write():
    with FakeTensorMode(), Operations() as counted:
        x = torch.zeros(T, N)
        counted.work.clear()
        x.T.reshape(2, -1).view(-1).detach()
        assert x.is_contiguous()
        counted.work.clear()
        x.mul_(2)
    assert counted.work == Work({Operation(0, 2 * 4 * T * N, 4): 1})


@pytest.mark.parametrize("format", ["dense", "block_train", "tensor"])
def test_products_of_a_step_are_those_of_the_plan(format):
    from comera_dist.costs.memory import step_of

    config = read_config(None, [*TINY, f"model.format={format}", "data.seq_len=64", "train.batch_tokens=256"])
    plan = plan_decoder(config, FACTS.vocab_size)
    expected = {cost.name: cost.flops for cost in step_costs(config, plan, 256, "cpu")}
    # Attention's backward pass computes its scores again: 7 products instead of 6.
    expected["attention"] = expected["attention"] * 7 / 6
    flops = sum(count * operation.flops for operation, count in step_of(config, plan, 4, 1).work.items())
    assert flops == pytest.approx(sum(expected.values()), rel=0.03)


def test_a_step_by_hand():
    config = read_config(None, [*TINY, "train.zero_stage=0"])
    work, params = Work({Operation(10**9, 8, 4): 2, Operation(0, 10**8, 4): 1}), 10**6
    found = step_time(config, plan_model(config, FACTS), params, work, 3, Cluster(SLOW, 1, 1))
    assert found.compute == pytest.approx(3 * (2 * 1 + 1))
    assert found.update == pytest.approx(31 * 4 * params / 1e8)
    assert found.exchange == found.bytes_sent == 0
    assert found.total == found.compute + found.update


def test_processes_take_turns_on_cores_and_share_their_memory():
    config, work = read_config(None, [*TINY, "train.zero_stage=0"]), Work({Operation(10**9, 8, 4): 1})
    machine = replace(SLOW, cores=2, host_rate=1e6, waiting=0.5, network=1e30)

    def time(n):
        return step_time(config, plan_model(config, FACTS), 10**6, work, 1, Cluster(machine, n, 1))

    one, two, four = time(1), time(2), time(4)
    assert (one.compute, two.compute, four.compute) == (1, 1, 2)
    assert two.update == pytest.approx(2 * one.update)
    assert four.update == pytest.approx(2 * two.update)
    assert two.exchange == pytest.approx(two.bytes_sent / 1e6 + 0.5, rel=1e-3)
    assert four.exchange == pytest.approx(2 * (four.bytes_sent / 1e6 + 0.5), rel=1e-3)


def test_whole_matrices_are_dealt_out():
    dense = [*TINY, "model.format=dense", "optim.kind=spectral"]

    def update(n, stage):
        config = read_config(None, [*dense, f"train.zero_stage={stage}"])
        return step_time(config, plan_model(config, FACTS), 10**4, Work(), 1, Cluster(SLOW, 1, n)).update

    products = 2 * (4 * newton_schulz_flops(1, 16, 16) + 3 * newton_schulz_flops(1, 16, 24)) / 2e9
    assert update(1, 0) == update(4, 0) == pytest.approx(31 * 4e4 / 1e8 + products)
    largest = newton_schulz_flops(1, 16, 24) / 2e9
    assert update(10**4, 1) == pytest.approx(4e4 * (7 + 39 / 10**4) / 1e8 + largest)


def test_only_newton_schulz_multiplies_in_bf16():
    def update(kind):
        config = read_config(None, [*TINY, "model.format=dense", f"optim.kind={kind}", "train.zero_stage=0"])
        return step_time(config, plan_model(config, FACTS), 1, Work(), 1, Cluster(SLOW, 1, 1)).update

    square, other = ((16, 16), (24, 16))
    for kind, rate in (("muon", 2e9), ("soap", 1e9)):
        flops = OPTIMIZERS[kind](Optim(kind=kind)).product_flops
        assert update(kind) == pytest.approx(2 * (4 * flops(1, *square) + 3 * flops(1, *other)) / rate, rel=0.01)


def test_newton_schulz_is_counted_as_it_is_computed():
    with FakeTensorMode(), Operations() as counted:
        newton_schulz(torch.zeros(3, 16, 24))  # less than twice as wide as high: one iteration at a time
    flops = sum(count * operation.flops for operation, count in counted.work.items())
    assert STEPS == 5
    assert flops == newton_schulz_flops(3, 24, 16)


@pytest.mark.parametrize("kind", ["fira", "apollo", "apollo_mini"])
def test_products_with_a_projection_are_counted_as_they_are_computed(kind):
    model = matrices([(6, 10), (10, 6)])
    rank = [] if kind == "apollo_mini" else [f"optim.{kind}.rank=4"]
    optimizer = optimizer_of(model, f"optim.kind={kind}", *rank)
    set_gradients(model, 0)
    with FlopCounterMode(display=False) as counter:
        optimizer.step()
    assert counter.get_total_flops() == optimizer.param_groups[0]["method"].product_flops(2, 10, 6)
