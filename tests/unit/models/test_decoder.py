"""The decoder against LLaMA as its reference implementation computes it, and tensorized against dense."""

import pytest
import torch
from support import TINY, VOCAB
from torch.nn import functional as F

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.formats.capabilities import ToDense
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.optim.groups import check_cover, parameter_groups


def build(*overrides, seed=0):
    config = read_config(None, [*TINY, "model.heads=4", *overrides])
    return config, Decoder(config.model, plan_decoder(config, VOCAB), torch.Generator().manual_seed(seed))


def dense_weights(model):
    """The state of the dense twin that computes the same function, by LLaMA's names."""
    state = {}
    for name, module in model.named_modules():
        if isinstance(module, ToDense):
            state[f"{name}.weight"] = module.to_dense()
        else:
            state |= {f"{name}.{key}": p for key, p in module.named_parameters(recurse=False)}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def random_tokens(*shape):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["dense", "tensor", "low_rank", "mixed_dimension"])
def test_logits_are_those_of_llama(kv_heads, tied, kind):
    transformers = pytest.importorskip("transformers", reason="transformers is the reference of LLaMA's details")
    config, model = build(
        f"model.kv_heads={kv_heads}", f"model.tie_embeddings={str(tied).lower()}", f"model.format={kind}",
        "model.rope_theta=5000", "model.norm_eps=1e-4",
    )  # fmt: skip
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    reference = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=config.model.d_model,
            intermediate_size=config.model.d_ff,
            num_hidden_layers=config.model.layers,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-4,
            rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
            tie_word_embeddings=tied,
            attn_implementation="eager",
        )
    )
    missing, unexpected = reference.load_state_dict(dense_weights(model), strict=False)
    assert not unexpected
    assert missing == (["lm_head.weight"] if tied else [])
    tokens = random_tokens(2, 11)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model.tie_embeddings=true"],
        ["model.tie_embeddings=true", "model.format=low_rank"],
        ["model.tie_embeddings=true", "model.format=mixed_dimension"],
        ["model.format.head=mixed_dimension"],
        ["model.format=dense"],
    ],
)
def test_loss_is_the_summed_cross_entropy_of_the_logits(overrides):
    _, model = build(*overrides)
    tokens, targets = random_tokens(2, 9), random_tokens(2, 9).roll(1)
    targets[0, :4] = -100
    loss = model(tokens, targets)
    expected = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(loss, list(model.parameters()))
    for ours, oracle in zip(found, torch.autograd.grad(expected, list(model.parameters())), strict=True):
        torch.testing.assert_close(ours, oracle, rtol=1e-3, atol=1e-4)


def test_no_token_sees_a_later_one():
    _, model = build()
    tokens = random_tokens(1, 12)
    changed = tokens.clone()
    changed[0, 8] = (tokens[0, 8] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_first_loss_is_that_of_guessing():
    _, model = build("model.d_model=64", "model.d_ff=176")
    tokens = random_tokens(4, 32)
    loss = model(tokens, tokens.roll(-1)) / tokens.numel()
    assert loss.item() == pytest.approx(torch.tensor(float(VOCAB)).log().item(), abs=0.1)


def test_same_seed_same_weights():
    first, again, other = (dict(build(seed=s)[1].named_parameters()) for s in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.core_1"], other["lm_head.core_1"])


def test_each_kind_of_layer_has_its_own_format():
    _, model = build("model.format.mlp=dense", "model.format.head=dense")
    assert isinstance(model.model.layers[0].self_attn.q_proj, TTLinear)
    assert isinstance(model.model.embed_tokens, TTMEmbedding)
    assert not isinstance(model.model.layers[0].mlp.up_proj, TTLinear)
    assert not isinstance(model.lm_head, TTLinear)


def test_rules_override_single_layers():
    rules = "[{match: '*.1.*.o_proj', format: dense}, {match: '*.o_proj', rank: 2, order: 1}]"
    _, model = build(f"tensor.layers={rules}")
    assert model.model.layers[0].self_attn.o_proj.plan.ranks == (1, 2, 1)
    assert not isinstance(model.model.layers[1].self_attn.o_proj, TTLinear)


def test_a_rule_without_a_layer_is_an_error():
    with pytest.raises(ConfigError, match="matches no layer"):
        build("tensor.layers=[{match: '*.oproj', rank: 2}]")


def test_parameter_groups_cover_the_model_exactly():
    config, model = build("optim.core_lr_scale=0.5", "optim.gate_lr_scale=0.1", "model.format.mlp=dense")
    groups = {group["name"]: group for group in parameter_groups(model, config.optim)}
    names = {id(p): name for name, p in model.named_parameters()}
    members = {name: {names[id(p)] for p in group["params"]} for name, group in groups.items()}
    assert sum(len(group["params"]) for group in groups.values()) == len(names)
    assert all(".core_" in name for name in members["cores"])
    assert all(".gate_" in name for name in members["gates"])
    assert all("mlp" in name for name in members["dense"])
    assert all("norm" in name for name in members["no_decay"])
    assert {n: (g["lr"], g["weight_decay"]) for n, g in groups.items()} == {
        "cores": (1.5e-3, 0.1), "gates": (pytest.approx(3e-4), 0.0), "dense": (3e-3, 0.1), "no_decay": (3e-3, 0.0)
    }  # fmt: skip


def test_a_parameter_in_no_group_or_in_two_is_an_error():
    _, model = build()
    parameters = list(model.parameters())
    with pytest.raises(AssertionError, match="miss"):
        check_cover(model, parameters[1:])
    with pytest.raises(AssertionError, match="repeat"):
        check_cover(model, [*parameters, parameters[0]])


@pytest.mark.parametrize("rank", [1, 4, 64])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_parameters_have_plain_strides_and_storage_of_their_own(order, rank):
    """DeepSpeed broadcasts parameters as bytes, and cores that are views of one factorisation would share memory."""
    _, model = build(
        f"tensor.order={order}", f"tensor.rank={rank}", f"tensor.outer_rank={rank}",
        f"tensor.embedding_order={order}", f"tensor.embedding_rank={rank}",
    )  # fmt: skip
    for parameter in model.parameters():
        assert parameter.stride() == torch.empty(parameter.shape).stride()
        assert parameter.untyped_storage().nbytes() == 4 * parameter.numel()
