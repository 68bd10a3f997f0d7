"""Gates of a decoder's attention heads."""

import pytest
import torch
from support import TINY, VOCAB

from comera_dist.config.reader import read_config
from comera_dist.models.decoder.head_gates import HeadGates
from comera_dist.models.decoder.plan import DecoderFacts
from comera_dist.models.family import build_model, plan_model
from comera_dist.optim.groups import parameter_groups

GATED = "model.gated_attention=true"


def build(*overrides):
    config = read_config(None, [*TINY, *overrides])
    return config, build_model(config.model, plan_model(config, DecoderFacts(VOCAB)), torch.Generator().manual_seed(0))


def test_a_result_is_multiplied_by_the_gate_of_its_head():
    generator = torch.Generator().manual_seed(0)
    gates, x_BSD = HeadGates(6, 3), torch.randn(2, 4, 6, generator=generator)
    gates.weight.data.normal_(generator=generator)
    y_BSHE = torch.randn(2, 4, 3, 5, generator=generator)
    expected = torch.empty_like(y_BSHE)
    for batch in range(2):
        for place in range(4):
            for head in range(3):
                score = sum(gates.weight[head, i] * x_BSD[batch, place, i] for i in range(6))
                expected[batch, place, head] = 2 / (1 + torch.exp(-score)) * y_BSHE[batch, place, head]
    torch.testing.assert_close(gates(x_BSD, y_BSHE), expected)


def test_a_decoder_starts_as_without_gates_and_uses_them():
    tokens_BS = torch.randint(1, VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    (_, plain), (_, gated) = build(), build(GATED)
    without = plain(tokens_BS)
    assert torch.equal(gated(tokens_BS), without)
    for block in gated.model.layers:
        block.self_attn.head_gates.weight.data.normal_(generator=torch.Generator().manual_seed(2))
    assert not torch.allclose(gated(tokens_BS), without)


@pytest.mark.parametrize("kind", ["adamw", "spectral", "muon"])
def test_gates_of_heads_are_stepped_by_adamw(kind):
    """They are not diagonal gates of ranks, which no weight decay presses, nor matrices of spectral steps."""
    config, model = build(GATED, f"optim.kind={kind}", "model.format=dense")
    weights = {block.self_attn.head_gates.weight for block in model.model.layers}
    assert {g["group"] for g in parameter_groups(model, config.optim) if weights & set(g["params"])} == {"dense"}
