"""LORO against dense matrices in float64: projections by pseudo-inverses, retractions by whole decompositions.

Shapes: a layer of N inputs and M outputs is X·diag(gate)·Yᵀ with X (N, R) and Y (M, R).
"""

import numpy as np
import pytest
import torch
from numpy.linalg import matrix_norm, pinv, svd
from support import TINY, VOCAB
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.shapes import plan_tt
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.optim.build import build_optimizer
from comera_dist.optim.riemannian_steps import WEAKEST, inverse_gram, lift, retracted

N, M, R = 14, 18, 5
LR, DECAY, BETAS, EPS, EVERY = 0.02, 0.2, (0.9, 0.95), 1e-8, 3


def layer_of(rank=R):
    """A layer, alone in a block, and its optimizer.

    A new layer has equal singular values, and rounding would choose its singular vectors.
    """
    layer = plan_tt(N, M, 1, rank).build(0.3, torch.Generator().manual_seed(0))
    layer.core_1.data.mul_(torch.linspace(1, 3, rank))
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"layer": layer})])})
    settings = [f"optim.lr={LR}", f"optim.weight_decay={DECAY}", f"optim.loro.exact_every={EVERY}"]
    return layer, build_optimizer(model, read_config(None, [*TINY, "optim.kind=loro", *settings]).optim)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def factors_of(layer):
    return [layer.core_1.detach()[0].double().numpy(), layer.core_2.detach()[..., 0].T.double().numpy()]


def set_gradients(layer, gradient_NM):
    """Of a loss whose gradient with respect to the weight (N, M) is given."""
    layer.zero_grad()
    (layer.to_dense().T * gradient_NM.float()).sum().backward()


class Adam:
    """Adam's step of one factor, in numpy."""

    def __init__(self):
        self.steps, self.mean, self.square = 0, 0.0, 0.0

    def direction(self, gradient):
        self.steps += 1
        self.mean = BETAS[0] * self.mean + (1 - BETAS[0]) * gradient
        self.square = BETAS[1] * self.square + (1 - BETAS[1]) * gradient**2
        corrected = self.square / (1 - BETAS[1] ** self.steps)
        return self.mean / (1 - BETAS[0] ** self.steps) / (np.sqrt(corrected) + EPS)


def slow_step(X, Y, D_X, D_Y, is_exact):
    """The next factors, by the formulas of the docstring, with all matrices in full."""
    P_X, P_Y = X @ pinv(X), Y @ pinv(Y)
    L_X = (np.eye(len(X)) - P_X / 2) @ D_X @ pinv(Y.T @ Y)
    L_Y = (np.eye(len(Y)) - P_Y / 2) @ D_Y @ pinv(X.T @ X)
    kept = 1 - LR * DECAY
    if not is_exact:
        return kept**0.5 * X - LR * L_X, kept**0.5 * Y - LR * L_Y
    return balanced(*svd(kept * X @ Y.T - LR * (L_X @ Y.T + X @ L_Y.T)), X.shape[1])


def balanced(U, values, Vh, rank):
    U, V = U[:, :rank] * values[:rank] ** 0.5, Vh[:rank].T * values[:rank] ** 0.5
    signs = np.sign(U[np.abs(U).argmax(axis=0), range(rank)])
    return U * signs, V * signs


@pytest.mark.parametrize("rank", [R, N])  # twice the rank fits into the sides, or not
def test_steps_are_those_of_the_definition(rank):
    layer, optimizer = layer_of(rank)
    adams, (X, Y) = [Adam(), Adam()], factors_of(layer)
    for step in range(1, 2 * EVERY + 2):
        gradient_NM = random(N, M, seed=step)
        set_gradients(layer, gradient_NM)
        optimizer.step()
        G = gradient_NM.numpy()
        X, Y = slow_step(X, Y, adams[0].direction(G @ Y), adams[1].direction(G.T @ X), step % EVERY == 0)
        if step % EVERY == 0:
            adams = [Adam(), Adam()]
        np.testing.assert_allclose(layer.to_dense().detach().T, X @ Y.T, atol=2e-5)
        for found, expected in zip(factors_of(layer), (X, Y), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)


def tangent(X, Y, G):
    """The projection of G on the tangent space of matrices of one rank, at X·Yᵀ."""
    P_X, P_Y = X @ pinv(X), Y @ pinv(Y)
    return P_X @ G + G @ P_Y - P_X @ G @ P_Y


@pytest.fixture
def point():
    """Factors, and the gradient G of the weight."""
    return random(N, R, seed=1), random(M, R, seed=2), random(N, M, seed=3)


def test_lifted_gradients_make_the_projection_on_the_tangent_space(point):
    X, Y, G = point
    L_X, L_Y = lift((X, Y), (G @ Y, G.mT @ X))
    np.testing.assert_allclose(L_X @ Y.mT + X @ L_Y.mT, tangent(*map(np.asarray, point)), atol=1e-12)


def test_an_exact_step_is_the_best_approximation_in_balanced_factors(point):
    X, Y, G = point
    new_X, new_Y = retracted((X, Y), lift((X, Y), (G @ Y, G.mT @ X)), 0.5, 0.9)
    U, values, Vh = svd(0.9 * (X @ Y.mT).numpy() - 0.5 * tangent(*map(np.asarray, point)))
    assert values[R] > 0.1  # there is something to cut
    np.testing.assert_allclose(new_X @ new_Y.mT, (U[:, :R] * values[:R]) @ Vh[:R], atol=1e-12)
    for new in (new_X, new_Y):
        np.testing.assert_allclose(new.mT @ new, np.diag(values[:R]), atol=1e-12)


def test_both_steps_agree_to_first_order(point):
    X, Y, G = point
    lifted = lift((X, Y), (G @ Y, G.mT @ X))

    def difference(lr):
        new_X, new_Y = retracted((X, Y), lifted, lr, 1.0)
        return matrix_norm(new_X @ new_Y.mT - (X - lr * lifted[0]) @ (Y - lr * lifted[1]).mT)

    assert difference(1e-3) / difference(5e-4) == pytest.approx(4, rel=0.01)


def test_a_nearly_lost_direction_makes_no_huge_step():
    Z = torch.linalg.qr(random(M, R)).Q * torch.tensor([1.0, 1.0, 1.0, 1.0, 1e-5], dtype=torch.float64)
    values = torch.linalg.eigvalsh(inverse_gram(Z))
    assert values.max() == pytest.approx(1 / (WEAKEST * 4 / R))
    assert values[:4].tolist() == pytest.approx([1.0] * 4)
    assert not (torch.zeros(M, R) @ inverse_gram(torch.zeros(M, R))).any()


def test_moments_begin_anew_after_an_exact_step():
    layer, optimizer = layer_of()
    for step in range(1, EVERY + 1):
        set_gradients(layer, random(N, M, seed=step))
        optimizer.step()
        held = [
            optimizer.state[core][kind] for core in (layer.core_1, layer.core_2) for kind in ("exp_avg", "exp_avg_sq")
        ]
        assert all(tensor.any() for tensor in held) == (step < EVERY)
    assert optimizer.state[layer.core_1]["step"] == EVERY


def test_gates_are_folded_into_the_first_core():
    """As in a run that starts from another run's weights. A closed gate leaves nothing to step its index of X by."""
    gated, folded = layer_of(), layer_of()
    gate = torch.tensor([0.5, 2.0, -1.0, 1.0, 0.25])
    gated[0].gate_1.data.copy_(gate)
    folded[0].core_1.data.mul_(gate)
    for layer, optimizer in (gated, folded):
        for step in range(2):
            set_gradients(layer, random(N, M, seed=step))
            optimizer.step()
    torch.testing.assert_close(gated[0].to_dense(), folded[0].to_dense())
    assert gated[0].gate_1.tolist() == [1.0] * R
    gated[0].gate_1.data[0] = 0
    set_gradients(gated[0], random(N, M))
    gated[1].step()
    assert gated[0].to_dense().isfinite().all()


@pytest.mark.parametrize("frozen", ["core_1", "core_2", "gate_1"])
def test_a_layer_that_is_frozen_in_part_is_refused(frozen):
    layer, optimizer = layer_of()
    layer.get_parameter(frozen).requires_grad_(False)
    set_gradients(layer, random(N, M))
    with pytest.raises(ConfigError, match=rf"gate of layers.0.layer together, and no gradient has reached {frozen}; "):
        optimizer.step()


def test_a_frozen_layer_stays_as_it_is():
    layer, optimizer = layer_of()
    before = layer.to_dense().detach()
    optimizer.step()
    assert torch.equal(layer.to_dense(), before)


@pytest.mark.parametrize("rank", [R, 12])
def test_products_are_counted_as_they_are_computed(rank):
    layer, optimizer = layer_of(rank)
    method, sizes = optimizer.param_groups[0]["method"], layer.plan.unfoldings.values()
    set_gradients(layer, random(N, M))
    for step in range(1, EVERY + 1):
        with FlopCounterMode(display=False) as counter:
            optimizer.step()
        approximate = sum(8 * max(n, m) * rank**2 + 4 * rank**3 for _, n, m in sizes)
        if step < EVERY:
            assert counter.get_total_flops() == approximate
    householder = sum(4 * max(n, m) * min(2 * rank, max(n, m)) ** 2 for _, n, m in sizes)
    expected = approximate + (counter.get_total_flops() - approximate + householder) / EVERY
    # Where twice the rank exceeds the sides, the small matrix is not square and its share is that of a square one.
    assert sum(method.product_flops(*size) for size in sizes) == pytest.approx(expected, rel=0.02)


def build(*overrides):
    config = read_config(None, [*TINY, "optim.kind=loro", "train.zero_stage=0", *overrides])
    return Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(0)), config


def test_it_takes_layers_of_two_factors_and_adamw_all_else():
    formats = ["model.format={attention: low_rank, mlp: tensor, embedding: low_rank, head: low_rank}"]
    model, config = build(*formats, "optim.matrix_lr_scale=0.5", "optim.core_rates=fan_in")
    names = {p: name for name, p in model.named_parameters()}
    groups = build_optimizer(model, config.optim).param_groups
    taken = {names[p] for group in groups if group["method"].name == "loro" for p in group["params"]}
    expected = {name for name in names.values() if "self_attn" in name}
    assert {name.rpartition(".")[2] for name in taken} == {"core_1", "core_2", "gate_1"}
    assert taken == expected
    assert [group["lr_scale"] for group in groups if group["name"] == "low_rank"] == [0.5]
    assert any(group["name"].startswith("cores x") for group in groups)


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match="two factors and the model has none; store some of them as low_rank"):
        build("model.format=dense")
    model, config = build("model.format=tensor", "tensor.outer_rank=1", "tensor.order=2")
    with pytest.raises(ConfigError, match="two factors and the model has none; store some of them as low_rank"):
        build_optimizer(model, config.optim)


def test_adapting_ranks_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"optim.kind = loro keeps of cores what has not their shape, .*; set ranks.adapt=false",
    ):
        build("model.format=low_rank", "ranks.adapt=true", "train.steps=100")
