"""Query heads that share a key head go to fused attention on a GPU, which keeps no weights of all pairs of tokens.

torch says of `enable_gqa`: "It currently works only for Flash_attention and math kernel on CUDA tensor". Flash
attention takes 16 bits and no mask.
"""

import pytest
import torch
from fake_gpu import fake_gpu
from support import TINY, VOCAB
from torch.nn import functional as F
from two_devices import TwoDevices

from comera_dist.config.reader import read_config
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.ops.grouped_heads import for_fused_kernels


@pytest.mark.parametrize(
    ("dtype", "has_mask", "heads"),
    [
        (torch.float32, False, 4),
        (torch.float32, True, 4),
        (torch.bfloat16, True, 4),
        (torch.bfloat16, False, 2),
        (torch.float16, False, 2),
    ],
)
def test_heads_are_shared_only_where_flash_attention_runs(dtype, has_mask, heads):
    with fake_gpu():
        q, k, v = (torch.empty(1, count, 8, 16, dtype=dtype) for count in (4, 2, 2))
        found = for_fused_kernels(q, k, v, has_mask)
    assert [tensor.shape[1] for tensor in found] == [heads, heads]


def test_a_cpu_shares_heads_in_any_case():
    q, k, v = (torch.randn(1, count, 8, 16) for count in (4, 2, 2))
    found = for_fused_kernels(q, k, v, has_mask=True)
    assert found[0] is k
    assert found[1] is v


def test_repeated_heads_attend_as_shared_ones(assert_close):
    q, k, v = (torch.randn(2, count, 8, 16) for count in (6, 2, 2))
    with TwoDevices() as gpu:
        repeated = for_fused_kernels(*map(gpu.put, (q, k, v)), has_mask=False)
    assert_close(F.scaled_dot_product_attention(q, *repeated), F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_a_decoder_in_fp32_asks_for_no_groups_on_a_gpu(monkeypatch):
    asked, attend = [], F.scaled_dot_product_attention

    def note(*arguments, **options):
        asked.append(options["enable_gqa"])
        return attend(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", note)
    config = read_config(None, [*TINY, "model.heads=4", "model.kv_heads=2"])
    with fake_gpu():
        model = Decoder(config.model, plan_decoder(config, VOCAB), None)
        tokens = torch.zeros(2, 8, dtype=torch.long)
        model(tokens, tokens).backward()
    assert asked == [False] * config.model.layers
