"""The weight matrices of a decoder, by the names of LLaMA's published checkpoints."""

from dataclasses import dataclass

from comera_dist.config.model_section import ModelSection
from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan, check_rules, plan_embedding, plan_linear
from comera_dist.models.base import IN_BLOCK

EMBEDDING, BIGRAMS, HEAD = "model.embed_tokens", "model.embed_bigrams", "lm_head"


@dataclass(frozen=True)
class DecoderFacts:
    """The facts about its data that a decoder needs."""

    vocab_size: int


def plan_decoder(config: Config, vocab_size: int) -> Plan:
    """The plan of every matrix of the configured decoder, by module name.

    Raises ConfigError if a rule of `tensor` matches no layer or asks for an impossible shape.
    """
    model = config.model
    plan = {EMBEDDING: plan_embedding(config, EMBEDDING, model.format.embedding, vocab_size, model.d_model)}
    if model.bigram_rows is not None:
        plan[BIGRAMS] = plan_embedding(config, BIGRAMS, model.format.embedding, model.bigram_rows, model.d_model)
    linears = {f"model.layers.{i}.{part}": sizes for i in range(model.layers) for part, sizes in _block(model).items()}
    if not model.tie_embeddings:
        linears[HEAD] = (model.d_model, vocab_size)
    for name, (inputs, outputs) in linears.items():
        plan[name] = plan_linear(config, name, getattr(model.format, format_key(name)), inputs, outputs)
    check_rules(config, plan)
    return plan


def format_key(name: str) -> str:
    """The key of `model.format` that sets the format of the layer `name`."""
    if IN_BLOCK.search(name):
        return "attention" if ".self_attn." in name else "mlp"
    return "head" if name == HEAD else "embedding"


def _block(model: ModelSection) -> dict[str, tuple[int, int]]:
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
