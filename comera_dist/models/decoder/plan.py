"""The weight matrices of a decoder, by the names of LLaMA's published checkpoints."""

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan, check_rules, plan_embedding, plan_linear
from comera_dist.models.decoder.section import DecoderConfig


def plan_decoder(config: Config, vocab_size: int) -> Plan:
    """Plans every weight matrix of the decoder that `config` describes, by module name.

    Raises ConfigError where a rule of `tensor` matches no layer or asks for an impossible shape.
    """
    model = config.model
    name = "model.embed_tokens"
    plan = {name: plan_embedding(config, name, model.format.embedding, vocab_size, model.d_model)}
    for index in range(model.layers):
        for part, (inputs, outputs) in _block(model).items():
            name = f"model.layers.{index}.{part}"
            kind = model.format.attention if ".self_attn." in name else model.format.mlp
            plan[name] = plan_linear(config, name, kind, inputs, outputs)
    if not model.tie_embeddings:
        plan["lm_head"] = plan_linear(config, "lm_head", model.format.head, model.d_model, vocab_size)
    check_rules(config, plan)
    return plan


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
