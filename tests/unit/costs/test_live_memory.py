"""Bytes that are counted without values, beside those of a real step and of the definition."""

import pytest
import torch
from support import FACTS, TINY, VOCAB, WORKLOADS
from torch import nn

from comera_dist.config.reader import read_config
from comera_dist.costs.live_memory import LiveBytes, blank_step
from comera_dist.models.checkpointed_block import checkpoint_blocks
from comera_dist.models.family import build_model, kind_of, plan_model
from comera_dist.runtime.forward import AutocastModel

KINDS = {
    "decoder": TINY,
    "packed": [*TINY, "data.documents=separate"],
    **{name: WORKLOADS[name] for name in ("masked_lm", "classifier")},
}
OTHERS = [
    "block_train",
    "{rest: low_rank}",
    "{rest: sltrain, embedding: dense}",
    "{rest: bottleneck, embedding: mixed_dimension}",
    "{rest: shared, embedding: dense, head: dense}",
]
MODES = ("none", "selective", "block")
CASES = [("decoder", "fp32", format, mode) for format in ("dense", "tensor") for mode in MODES]
CASES += [("decoder", "bf16", "tensor", mode) for mode in MODES]
CASES += [("decoder", "fp32", format, mode) for format in OTHERS for mode in ("none", "block")]
CASES += [("decoder", "fp8", "dense", mode) for mode in MODES]
CASES += [("packed", "fp32", "dense", "selective"), ("packed", "bf16", "tensor", "block")]
CASES += [("masked_lm", "fp32", "tensor", mode) for mode in MODES]
CASES += [("classifier", "fp32", "block_train", "none"), ("classifier", "bf16", "dense", "block")]


def opened(kind, *overrides):
    config = read_config(None, [*KINDS[kind], *overrides])
    plan = plan_model(config, FACTS)
    return config, plan, build_model(config.model, plan, torch.Generator().manual_seed(0))


def batch_of(config):
    """No two tokens are equal, as the estimate supposes."""
    tokens, *others = kind_of(config.model).blank_batch(config, 2)
    return (torch.arange(tokens.numel()).view_as(tokens) + 5, *others)


def estimated(config, plan, micro_batches=1):
    return blank_step(
        lambda: build_model(config.model, plan, None),
        lambda: kind_of(config.model).blank_batch(config, 2),
        config.train.precision,
        config.train.activation_checkpointing,
        VOCAB,
        micro_batches,
    )


@pytest.mark.parametrize(("kind", "precision", "format", "mode"), CASES)
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_a_step_without_values_takes_the_bytes_of_a_real_one(kind, precision, format, mode):
    settings = [f"model.format={format}", f"train.precision={precision}", f"train.activation_checkpointing={mode}"]
    config, plan, _ = opened(kind, *settings)
    with LiveBytes() as live:
        model = build_model(config.model, plan, torch.Generator().manual_seed(0))
        checkpoint_blocks(model, mode)
        batch, module = batch_of(config), AutocastModel(model, precision)
        before = live.peak = live.now
        loss = module(*batch)
        kept = live.now - before
        loss.backward()
    found = estimated(config, plan)
    assert (found.kept, found.peak) == (kept, live.peak - before)


def test_what_is_kept_is_what_autograd_saves():
    config, plan, model = opened("decoder", "model.format=dense")
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = batch_of(config)
    held = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *batch)}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(*batch)
    kept = sum(size for address, size in saved.items() if address not in held)
    assert estimated(config, plan).kept == pytest.approx(kept + loss.nbytes, rel=0.01)


class Squares(nn.Module):
    """The sum of squares of the output of a layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 6, bias=False)

    def forward(self, x):
        y = self.layer(x)
        return (y * y).sum()


def test_bytes_of_a_layer_are_those_of_the_definition():
    found = blank_step(Squares, lambda: (torch.zeros(7, 5),), "fp32", "none", 0)
    output, loss = 4 * 7 * 6, 4
    assert found.kept == output + loss
    # Either way the product's gradient, grad · y twice, lives beside y, the loss and its gradient.
    assert found.peak == 3 * output + 2 * loss


def test_freed_tensors_do_not_count():
    with LiveBytes() as live:
        first = torch.zeros(10)
        torch.zeros(30)
        second = first + 1
        del first
        assert (live.now, live.peak) == (second.nbytes, 4 * 40)


def test_gradients_live_while_later_micro_batches_run():
    config, plan, model = opened("decoder", "model.format=dense", "train.activation_checkpointing=block")
    gradients = 4 * sum(parameter.numel() for parameter in model.parameters())
    once, twice = (estimated(config, plan, count) for count in (1, 2))
    assert once.kept == twice.kept
    assert once.peak < twice.peak <= once.peak + gradients
    assert estimated(config, plan, 3) == twice
