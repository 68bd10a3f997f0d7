"""Plans the weight matrices of every kind of model, and counts what a model stores and computes besides them."""

import re

from comera_dist.config.tree import Config, masked_places
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.plan import DataFacts, Plan
from comera_dist.models.decoder.plan import plan_decoder
from comera_dist.models.dlrm.plan import plan_dlrm
from comera_dist.models.encoder.plan import plan_encoder

# As LLaMA's and BERT's published checkpoints name the modules of their blocks.
IN_BLOCK = re.compile(r"(^|\.)layers?\.\d+\.")


def plan_model(config: Config, facts: DataFacts) -> Plan:
    """The plan of the model that `config` describes, for data of these `facts`. Raises ConfigError."""
    if config.model.kind == "decoder":
        return plan_decoder(config, facts.vocab_size)
    if config.model.kind == "encoder":
        return plan_encoder(config, facts.vocab_size, facts.classes)
    return plan_dlrm(config, facts)


def known_facts(config: Config, vocab_size: int | None = None) -> DataFacts | None:
    """What the configuration, or `vocab_size`, says about the data by itself; None where only a corpus can tell."""
    model = config.model
    if model.kind == "decoder" and vocab_size:
        return DataFacts(vocab_size=vocab_size)
    if model.kind == "encoder" and (model.classes or model.head == "masked_lm"):
        vocab_size = vocab_size or model.vocab_size
        return DataFacts(vocab_size=vocab_size, classes=model.classes or 0) if vocab_size else None
    if model.kind == "dlrm" and model.table_rows and model.dense_features is not None:
        return DataFacts(dense_features=model.dense_features, table_rows=model.table_rows)
    return None


def format_key(name: str, layer: MatrixPlan) -> str:
    """The key of `model.format` that says how the layer `name` is stored."""
    if layer.is_embedding:
        return "embedding"
    if "attn." in name or "attention." in name:
        return "attention"
    is_mlp = IN_BLOCK.search(name) or name.startswith(("bottom.", "top."))
    return "mlp" if is_mlp else "head"


def stored_parts(config: Config, plan: Plan) -> dict[str, int]:
    """Stored numbers of the whole model by part: tables, matrices with their gates and biases, norms."""
    parts: dict[str, int] = {}

    def add(part: str, numbers: int) -> None:
        if numbers:
            parts[part] = parts.get(part, 0) + numbers

    for name, layer in plan.items():
        group = _group(name)
        gates = layer.num_gates
        if layer.is_embedding:
            add(group, layer.parameters)
            continue
        add(f"{group}: matrices", layer.parameters - gates)
        add(f"{group}: gates", gates)
        if config.model.kind != "decoder":
            add(f"{group}: biases", layer.outputs)
    norms = _norm_weights(config)
    add("norms: weights", norms)
    if config.model.kind == "encoder":
        add("norms: biases", norms)
    return parts


def _group(name: str) -> str:
    """`blocks` for all layers of all blocks; otherwise the module's own name, its number left out."""
    if IN_BLOCK.search(name):
        return "blocks"
    return re.sub(r"\.(\d+|dense)$", "", name).removeprefix("bert.embeddings.").rpartition(".")[2]


def _norm_weights(config: Config) -> int:
    model = config.model
    if model.kind == "dlrm":
        return 0
    # A pre-norm model ends with a norm, a post-norm one begins with it; the masked-LM head has one more.
    extra = model.kind == "encoder" and model.head == "masked_lm"
    return model.d_model * (2 * model.layers + 1 + extra)


def unplanned_flops(config: Config, plan: Plan) -> float:
    """Forward FLOPs a token (a row of a DLRM) that belong to no planned layer: attention, tied output, interaction."""
    model = config.model
    if model.kind == "dlrm":
        vectors = sum(layer.is_embedding for layer in plan.values()) + ("bottom.0" in plan)
        return float(vectors * vectors * model.embedding_dim * 2)
    table = tied_table(config, plan)
    logits = 2 * table.dense_parameters if table else 0
    scores = 4 * model.layers * config.data.seq_len * model.d_model
    if model.kind == "decoder":
        return scores / 2 + logits  # a token sees half of the sequence on average
    return scores + logits * head_share(config)


def token_share(config: Config, name: str, layer: MatrixPlan) -> float:
    """Of all tokens the share for which the layer `name` runs: an encoder's head reads few places of a row."""
    if config.model.kind != "encoder" or layer.is_embedding or IN_BLOCK.search(name):
        return 1.0
    return head_share(config)


def head_share(config: Config) -> float:
    """Of all tokens the share that an encoder's head reads: the first of a row to classify it, or the hidden ones."""
    data = config.data
    places = 1 if config.model.head == "classification" else masked_places(data.seq_len, data.masked_fraction)
    return places / data.seq_len


def tied_table(config: Config, plan: Plan) -> MatrixPlan | None:
    """The embedding whose table is also the output's weight, for which a forward pass merges its cores; or None."""
    model = config.model
    if model.kind == "decoder" and model.tie_embeddings:
        return plan["model.embed_tokens"]
    if model.kind == "encoder" and model.head == "masked_lm":
        return plan["bert.embeddings.word_embeddings"]
    return None


def tied_merge_flops(config: Config, plan: Plan) -> int:
    """FLOPs of merging that table's cores, paid once per forward pass however many tokens it has."""
    table = tied_table(config, plan)
    return table.merge_flops if table else 0
