"""A decoder with a cache of keys and values, and with cores merged once, against the plain one."""

import pytest
import torch
from support import TINY, VOCAB

from comera_dist.config.reader import read_config
from comera_dist.costs.of_run import plan_run
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.generate.merged import merge_once
from comera_dist.generate.sampling import Sampling
from comera_dist.generate.writer import continuation
from comera_dist.models.decoder.kv_cache import KeyValueCache
from comera_dist.models.family import build_model


def formats(of_blocks):
    return f"model.format={{attention: {of_blocks}, mlp: {of_blocks}, embedding: dense, head: dense}}"


KINDS = {
    "dense": ["model.format=dense"],
    "tensor": [],
    "tied": ["model.tie_embeddings=true"],
    "dense, tied": ["model.tie_embeddings=true", "model.format=dense"],
    "grouped-query": ["model.kv_heads=2"],
    "pairs of tokens": ["model.bigram_rows=50"],
    "gated heads": ["model.gated_attention=true"],
    "one key-value head": ["model.kv_heads=1", "model.format.attention=dense"],
    "low rank": [formats("low_rank"), "tensor.low_rank.rank=3"],
    "block trains": [formats("block_train")],
    "shared": [formats("shared")],
    "low rank and sparse": [formats("sltrain")],
    "bottlenecks, which have no dense equal": [formats("bottleneck")],
    "mixed dimensions": ["model.format={rest: dense, embedding: mixed_dimension, head: mixed_dimension}"],
    # Wide middle ranks: factors hold more numbers than the weight.
    "high rank": ["tensor.rank=16", "tensor.outer_rank=16"],
}
EOS = 0


def build(kind):
    config = read_config(None, [*TINY, "model.heads=4", *KINDS[kind]])
    model = build_model(config.model, plan_run(config, VOCAB), torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        # So much that blocks change the next token: they start quiet.
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return config.model, model.eval()


def random_tokens(*shape):
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("is_merged", [False, True], ids=["as trained", "merged once"])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_logits_are_those_of_the_whole_sequence(kind, is_merged):
    config, model = build(kind)
    tokens_BS = random_tokens(3, 14)
    with torch.no_grad():
        expected_BSV = model(tokens_BS)
    if is_merged:
        merge_once(model)
        assert not any(isinstance(module, TensorTrain) for module in model.modules())
    cache = KeyValueCache(config, capacity=14, batch=3)
    found = [model.next_logits(tokens_BS[:, :6], cache)]
    found += [model.next_logits(tokens_BS[:, [index]], cache) for index in range(6, 14)]
    torch.testing.assert_close(torch.stack(found, 1), expected_BSV[:, 5:], rtol=1e-4, atol=1e-5)
    assert cache.length == 14


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_cache_of_a_model_in_another_dtype_is_in_it(dtype):
    _, model = build("tensor")
    model.to(dtype)
    tokens = random_tokens(1, 6)
    cache = model.empty_cache(6)
    found = [model.next_logits(part, cache) for part in (tokens[:, :5], tokens[:, 5:])]
    with torch.no_grad():
        expected = model(tokens)[:, 4:]
    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-12
    torch.testing.assert_close(torch.stack(found, 1), expected, rtol=tolerance, atol=tolerance)


def test_merging_once_keeps_the_smaller_form():
    low, high = build("tensor")[1], build("high rank")[1]
    for model in (low, high):
        merge_once(model)
    assert isinstance(low.model.layers[0].mlp.up_proj, torch.nn.Sequential)
    assert isinstance(high.model.layers[0].mlp.up_proj, torch.nn.Linear)


@pytest.mark.parametrize("kind", ["tensor", "pairs of tokens"])
def test_a_rewound_cache_goes_another_way(kind):
    config, model = build(kind)
    tokens, other = random_tokens(1, 9), random_tokens(1, 12)[:, -3:]
    cache = KeyValueCache(config, capacity=9)
    model.next_logits(tokens[:, :5], cache)
    for part in (tokens[:, 5:], other):
        cache.rewind(5)
        found = [model.next_logits(part[:, [position]], cache) for position in range(part.shape[1])]
        with torch.no_grad():
            expected = model(torch.cat((tokens[:, :5], part), 1))[:, 5:]
        torch.testing.assert_close(torch.stack(found, 1), expected, rtol=1e-4, atol=1e-5)


def test_a_full_cache_takes_no_more():
    config, model = build("dense")
    cache = KeyValueCache(config, capacity=4)
    model.next_logits(random_tokens(1, 4), cache)
    with pytest.raises(AssertionError, match="the cache is full"):
        model.next_logits(random_tokens(1, 1), cache)


def write(config, model, prompt, tokens, sampling, seed=0):
    cache = KeyValueCache(config, len(prompt) + tokens)
    logits_V = model.next_logits(torch.tensor([prompt]), cache)[0]
    generator = torch.Generator().manual_seed(seed)
    return list(continuation(model, cache, logits_V, tokens, sampling, generator, EOS))


@pytest.mark.parametrize("kind", ["dense", "tensor", "tied", "grouped-query"])
def test_greedy_continuation_is_the_argmax_of_the_uncached_model(kind):
    config, model = build(kind)
    prompt = random_tokens(7).tolist()
    found = write(config, model, prompt, 12, Sampling(temperature=0))
    expected = list(prompt)
    with torch.no_grad():
        while len(expected) < 19 and expected[-1] != EOS:
            expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert found == expected[7:]
    assert len(set(found)) > 1


def test_it_stops_at_the_end_of_text():
    config, model = build("dense")
    ends = [write(config, model, [5, 9], 400, Sampling(), seed) for seed in range(3)]
    assert all(ids[-1] == EOS for ids in ends)
    assert all(EOS not in ids[:-1] for ids in ends)


def test_a_seed_says_what_is_drawn():
    config, model = build("tensor")
    first, again, other = (write(config, model, [3, 4], 20, Sampling(top_k=9), seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
