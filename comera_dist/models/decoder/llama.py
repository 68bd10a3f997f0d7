"""The decoder as LLaMA of the library transformers. Both compute the same, so nothing is lost.

LLaMA has no gates of attention heads; an exported model that has them brings the code of these.
"""

from typing import Any

from comera_dist.config.tree import Config
from comera_dist.data.open_text import open_text
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.models.adopted import Settings, check_numbers, check_values, shown, value_of
from comera_dist.models.decoder.plan import EMBEDDING, HEAD
from comera_dist.models.published import Published

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# Values that transformers takes where a config.json does not name them (LlamaConfig).
ROPE_THETA, NORM_EPS = 10_000.0, 1e-6


def as_llama(config: Config, plan: Plan) -> Published:
    """LlamaForCausalLM with the sizes of the decoder.

    ConfigError if the decoder has a part that LLaMA lacks, DataError if its corpus is gone.
    """
    model = config.model
    if model.bigram_rows:
        raise ConfigError(
            f"model.bigram_rows = {model.bigram_rows} and LLaMA has no table of pairs of tokens; export with --to "
            f"tensors"
        )
    settings = {
        "model_type": "llama",
        "vocab_size": plan[EMBEDDING].inputs,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "head_dim": model.d_model // model.heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,  # releases of transformers below 5 read this key, later ones the next
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "max_position_embeddings": config.data.seq_len,
        "tie_word_embeddings": model.tie_embeddings,
    }
    tied = {HEAD: EMBEDDING} if model.tie_embeddings else {}
    gated = tuple(f"model.layers.{block}.self_attn" for block in range(model.layers) if model.gated_attention)
    return Published("Llama", "ForCausalLM", settings, open_text(config.data.folders[0]), tied=tied, gated=gated)


def of_llama(settings: Settings) -> dict[str, Any]:
    """The keys of `model`, but its kind, of a LlamaForCausalLM with the configuration `settings`.

    Raises ConfigError for one that computes something else than our decoder.
    """
    check_numbers(settings, SIZES)
    width, heads = settings["hidden_size"], settings["num_attention_heads"]
    rope = _rope(settings)
    expected = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "head_dim": width // heads}
    check_values(settings, expected, "our decoder")
    check_values(rope, {"rope_type": "default", "type": "default"}, "our decoder")
    return {
        "d_model": width,
        "layers": settings["num_hidden_layers"],
        "heads": heads,
        "kv_heads": value_of(settings, "num_key_value_heads", heads),
        "d_ff": settings["intermediate_size"],
        "rope_theta": value_of(rope, "rope_theta", value_of(settings, "rope_theta", ROPE_THETA)),
        "norm_eps": value_of(settings, "rms_norm_eps", NORM_EPS),
        "tie_embeddings": value_of(settings, "tie_word_embeddings", False),
        "gated_attention": False,
        "bigram_rows": None,
        "format": "dense",
    }


def _rope(settings: Settings) -> dict[str, Any]:
    """The settings of rotary positions. As in transformers, those under the key of earlier releases come first."""
    for key in ("rope_scaling", "rope_parameters"):
        rope = settings.get(key) or {}
        if not isinstance(rope, dict):
            raise ConfigError(f"config.json has {key} = {shown(rope)}, expected an object; take another model")
        if rope:
            return rope
    return {}
