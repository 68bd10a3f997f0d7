"""Runs with moments in bf16 and in 8 bits: resumed bit for bit, and near each other at all ZeRO stages."""

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, saved_tensors, tiny_run

from comera_dist.optim.base import MEAN, SQUARE
from comera_dist.optim.narrow_moments import decoded, encoded

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]
KINDS = ["adamw", "spectral"]
FORMS = ["bf16", "8bit"]
STAGES = (0, 1, 2, 3)
SIX = ["train.steps=6", "checkpoint.every=3", "checkpoint.keep=9", "model.format.attention=dense"]
MOMENTS = ("exp_avg/", "exp_avg_sq/", "momentum_buffer/")
ADAPTING = [
    *["ranks.adapt=true", "ranks.layers=['*.mlp.*']", "ranks.sync_every=2", "ranks.patience=1", "ranks.late_end=0.7"],
    *["ranks.target_fraction=0.5", "tensor.rank=6", "train.steps=10", "checkpoint.every=5", "checkpoint.keep=9"],
]


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return request.param


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory, form):
    """Six steps with each optimizer at every stage, with moments in fp32 at stage 0, resumed, and with ranks cut."""
    directory = tmp_path_factory.mktemp("narrow")

    def run(name, kind, stage, *more, moments=form):
        chosen = [f"optim.kind={kind}", f"optim.moments={moments}", f"train.zero_stage={stage}"]
        return tiny_run(tiny_corpus, directory, name, *SIX, *chosen, *more)

    straight = [run(f"{kind}_{stage}", kind, stage) for kind in KINDS for stage in STAGES]
    straight += [run(f"{kind}_fp32", kind, 0, moments="fp32") for kind in KINDS]
    straight += [run(f"{kind}_cut", kind, 1, *ADAPTING) for kind in KINDS]
    run_processes(2, "train_runs", runs=straight)
    names = {f"{kind}_{stage}": (kind, stage) for kind in KINDS for stage in (0, 1, 3)}
    again = [run(cut_back(directory, name, f"{name}_again", 3), *chosen) for name, chosen in names.items()]
    again += [run(cut_back(directory, f"{kind}_cut", f"{kind}_cut_again", 5), kind, 1, *ADAPTING) for kind in KINDS]
    run_processes(2, "train_runs", runs=again)
    return directory


@pytest.mark.parametrize("stage", [0, 1, 3, "cut"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(runs, kind, stage):
    step = 10 if stage == "cut" else 6
    expected, found = (saved_tensors(runs, f"{kind}_{stage}{more}", step) for more in ("", "_again"))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_stages_are_near_the_run_in_fp32_and_keep_narrow_numbers(runs, kind, stage, form):
    near = {"bf16": 1e-3, "8bit": 2e-3}[form]
    assert losses(runs, f"{kind}_{stage}") == pytest.approx(losses(runs, f"{kind}_fp32"), rel=near)
    assert losses(runs, f"{kind}_{stage}") != losses(runs, f"{kind}_fp32")
    moments = {name: t for name, t in saved_tensors(runs, f"{kind}_{stage}", 6).items() if name.startswith(MOMENTS)}
    assert moments
    if form == "bf16":
        assert all(torch.equal(tensor, tensor.bfloat16().float()) for tensor in moments.values())
    elif stage == 0:  # elsewhere blocks of numbers begin where slices do
        for name, tensor in moments.items():
            role = SQUARE if name.startswith("exp_avg_sq/") else MEAN
            assert torch.equal(decoded(*encoded(tensor, role), role), tensor)
