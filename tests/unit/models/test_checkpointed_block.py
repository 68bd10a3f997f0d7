"""A recomputed block gives the gradients of a kept one bit for bit, and keeps and computes what its mode says."""

import pytest
import torch
from support import FACTS, TINY, VOCAB, WORKLOADS
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import FlopCounterMode

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.models import checkpointed_block
from comera_dist.models.checkpointed_block import LEAST_SUM, CheckpointedBlock, checkpoint_blocks
from comera_dist.models.family import build_model, plan_model
from comera_dist.runtime.forward import compute_precision

MODES = ("selective", "block")
LENGTH = 16
DROPOUT = ["model.dropout=0.3"]
KINDS = {
    "decoder": TINY,
    "masked_lm": [*WORKLOADS["masked_lm"], *DROPOUT],
    "classifier": [*WORKLOADS["classifier"], *DROPOUT],
}
FORMATS = [
    "dense",
    "tensor",
    "block_train",
    "low_rank",
    "{rest: bottleneck, embedding: dense}",
    "{rest: sltrain, embedding: dense}",
    "{rest: shared, embedding: dense, head: dense}",
]
# Wide enough that some products have long sums and others short ones.
WIDE = [f"model.d_model={LEAST_SUM}", f"model.d_ff={2 * LEAST_SUM}"]


def build(kind, *overrides):
    config = read_config(None, [*KINDS[kind], *overrides])
    return build_model(config.model, plan_model(config, FACTS), torch.Generator().manual_seed(0))


def batch_of(kind):
    generator = torch.Generator().manual_seed(1)
    tokens, targets = (torch.randint(5, VOCAB, (3, LENGTH), generator=generator) for _ in range(2))
    if kind == "decoder":
        return tokens, targets
    places = targets[:, :3] % LENGTH
    return (
        (tokens, tokens % 2, places, targets[:, :3]) if kind == "masked_lm" else (tokens, tokens % 2, targets[:, 0] % 3)
    )


def loss_and_gradients(model, mode, batch, precision="fp32"):
    checkpoint_blocks(model, mode)
    torch.manual_seed(2)
    with compute_precision(torch.device("cpu"), precision):
        loss = model(*batch)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_gradients_are_the_same_bits(kind, format, precision, mode):
    model, batch = build(kind, f"model.format={format}", *WIDE), batch_of(kind)
    expected = loss_and_gradients(model, "none", batch, precision)
    found = loss_and_gradients(model, mode, batch, precision)
    assert all(map(torch.equal, found, expected))


def test_another_seed_of_dropout_would_be_noticed():
    model, batch = build("masked_lm"), batch_of("masked_lm")
    expected = loss_and_gradients(model, "block", batch)
    torch.manual_seed(3)
    assert not torch.equal(model(*batch), expected[0])


@pytest.mark.parametrize("mode", MODES)
def test_parameters_that_are_merged_alone_are_recomputed_too(mode):
    """As at ZeRO stage 3."""
    model, batch = build("decoder"), batch_of("decoder")
    model.merges_together = False
    expected = loss_and_gradients(model, "none", batch)
    assert all(map(torch.equal, loss_and_gradients(model, mode, batch), expected))


def flops(model, mode, batch):
    with FlopCounterMode(display=False) as counter:
        loss_and_gradients(model, mode, batch)
    return counter.get_total_flops()


def test_selective_computes_no_long_sum_and_no_attention_twice():
    batch = batch_of("decoder")
    dense = build("decoder", "model.format=dense", *WIDE)
    once, selective, block = (flops(dense, mode, batch) for mode in ("none", *MODES))
    assert once == selective < block
    narrow = build("decoder", "model.format={rest: low_rank, embedding: dense}", *WIDE)
    once, selective, block = (flops(narrow, mode, batch) for mode in ("none", *MODES))
    assert once < selective < block


class Square(CheckpointedBlock):
    def compute(self, x):
        return (x * x).sin()


def kept_numbers(mode):
    kept, x = [], torch.randn(7, requires_grad=True)
    block = Square()
    assert checkpoint_blocks(nn.ModuleList([block]), mode)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        block(x).sum().backward()
    return sum(kept)


def test_a_recomputed_block_keeps_nothing_but_its_inputs():
    assert kept_numbers("none") == 3 * 7  # x twice, and its square
    assert [kept_numbers(mode) for mode in MODES] == [7, 7]


def test_without_gradients_nothing_is_prepared(monkeypatch):
    monkeypatch.setattr(checkpointed_block, "checkpoint", None)
    block = Square()
    block.activation_checkpointing = "block"
    with torch.no_grad():
        block(torch.ones(2))
    with pytest.raises(TypeError):
        block(torch.ones(2))


@pytest.mark.parametrize("attention", sorted(checkpointed_block.ATTENTION, key=str), ids=str)
def test_attention_with_dropout_draws_again(attention):
    names = [argument.name for argument in attention._schema.arguments]
    place = names.index("dropout_p")
    kept, drawn = ([0] * place + [rate] for rate in (0.0, 0.1))
    assert checkpointed_block._policy(None, attention, *kept) is CheckpointPolicy.MUST_SAVE
    assert checkpointed_block._policy(None, attention, *drawn) is CheckpointPolicy.PREFER_RECOMPUTE
    assert checkpointed_block._policy(None, attention, dropout_p=0.1) is CheckpointPolicy.PREFER_RECOMPUTE


def test_a_model_without_blocks_is_noticed():
    assert not checkpoint_blocks(nn.Linear(2, 2), "block")


@pytest.mark.parametrize(
    ("kind", "overrides", "sentence"),
    [
        (
            "dlrm",
            ["train.activation_checkpointing=block"],
            "train.activation_checkpointing = block needs transformer blocks, and model.kind = dlrm has none; set it "
            "to none",
        ),
        (
            "masked_lm",
            ["train.activation_checkpointing=selective", "train.zero_stage=3"],
            "train.activation_checkpointing = selective is not possible at train.zero_stage = 3, which gathers weights "
            "while a block is recomputed; set it to block, or choose another stage",
        ),
    ],
)
def test_what_cannot_be_recomputed_is_refused(kind, overrides, sentence):
    with pytest.raises(ConfigError) as caught:
        read_config(None, [*WORKLOADS[kind], *overrides])
    assert str(caught.value) == sentence
