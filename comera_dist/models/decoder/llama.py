"""The decoder as LLaMA of the library transformers. Both compute the same, so nothing is lost."""

from comera_dist.config.tree import Config
from comera_dist.data.shards import Corpus
from comera_dist.formats.plan import Plan
from comera_dist.models.decoder.plan import EMBEDDING, HEAD
from comera_dist.models.published import Published


def as_llama(config: Config, plan: Plan) -> Published:
    """LlamaForCausalLM with the sizes of the decoder. DataError if its corpus is gone."""
    model = config.model
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
    return Published("Llama", "ForCausalLM", settings, Corpus(config.data.folders[0]), tied)
