"""The weight matrices of a decoder, by the names of LLaMA's published checkpoints."""

from dataclasses import dataclass

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan, check_rules, plan_embedding, plan_linear
from comera_dist.models.base import IN_BLOCK
from comera_dist.models.decoder.section import DecoderConfig

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


@dataclass(frozen=True)
class DecoderFacts:
    """What a decoder must know about its data."""

    vocab_size: int


def plan_decoder(config: Config, vocab_size: int) -> Plan:
    """Plans every weight matrix of the decoder that `config` describes, by module name.

    Raises ConfigError where a rule of `tensor` matches no layer or asks for an impossible shape.
    """
    model = config.model
    plan = {EMBEDDING: plan_embedding(config, EMBEDDING, model.format.embedding, vocab_size, model.d_model)}
    for name, (inputs, outputs) in _linears(model, vocab_size).items():
        plan[name] = plan_linear(config, name, getattr(model.format, format_key(name)), inputs, outputs)
    check_rules(config, plan)
    return plan


def format_key(name: str) -> str:
    """The key of `model.format` that says how the layer `name` is stored."""
    if IN_BLOCK.search(name):
        return "attention" if ".self_attn." in name else "mlp"
    return "embedding" if name == EMBEDDING else "head"


def _linears(model: DecoderConfig, vocab_size: int) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the linear layers, in their order."""
    block = _block(model)
    linears = {f"model.layers.{i}.{part}": sizes for i in range(model.layers) for part, sizes in block.items()}
    return linears if model.tie_embeddings else linears | {HEAD: (model.d_model, vocab_size)}


def _block(model: DecoderConfig) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the matrices of one transformer block."""
    width, hidden = model.d_model, model.d_ff
    kv_width = width // model.heads * (model.kv_heads or model.heads)
    return {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width, kv_width),
        "self_attn.v_proj": (width, kv_width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (width, hidden),
        "mlp.up_proj": (width, hidden),
        "mlp.down_proj": (hidden, width),
    }
