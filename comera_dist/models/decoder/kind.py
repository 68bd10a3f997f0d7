"""The decoder as a kind of model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.adopted import Settings
from comera_dist.models.base import Kind
from comera_dist.models.decoder.plan import EMBEDDING, HEAD, DecoderFacts, format_key, plan_decoder
from comera_dist.models.decoder.section import DecoderConfig
from comera_dist.models.work import Work, attention, head_gates, tied_head

if TYPE_CHECKING:
    import torch

    from comera_dist.data.tasks import Task
    from comera_dist.models.published import Published


class DecoderKind(Kind[DecoderFacts]):
    """A LLaMA-compatible decoder that models language."""

    section = DecoderConfig
    without_data = "give --vocab-size"
    logits_layer = HEAD
    recomputes_blocks = True
    learns_from_teachers = True
    adopts = ("llama",)
    block_keys = ("attention", "mlp")
    free_keys = frozenset({"format", "kv_heads"})  # kv_heads may be null or model.heads; the matrices are compared

    def plan(self, config: Config, facts: DecoderFacts) -> Plan:
        return plan_decoder(config, facts.vocab_size)

    def build(self, section: DecoderConfig, plan: Plan, generator: "torch.Generator | None") -> "torch.nn.Module":
        from comera_dist.models.decoder.model import Decoder

        return Decoder(section, plan, generator)

    def open_task(self, config: Config) -> "Task[DecoderFacts]":
        from comera_dist.data.open_text import holds_answers
        from comera_dist.models.decoder.answer_task import Answering
        from comera_dist.models.decoder.task import LanguageModelling

        return Answering(config) if holds_answers(config.data.corpus) else LanguageModelling(config)

    def blank_batch(self, config: Config, rows: int) -> "tuple[torch.Tensor, ...]":
        import torch

        tokens_BS = torch.zeros(rows, config.data.seq_len, dtype=torch.long)
        tensors = 3 if config.data.documents == "separate" else 2
        return tuple(tokens_BS.clone() for _ in range(tensors))

    def row_keys(self, config: Config) -> frozenset[str]:
        return frozenset({"seq_len", "documents"})

    def format_key(self, name: str) -> str:
        return format_key(name)

    def known_facts(self, section: DecoderConfig, vocab_size: int | None) -> DecoderFacts | None:
        return DecoderFacts(vocab_size) if vocab_size else None

    def problems(self, config: Config) -> list[str]:
        model, problems = config.model, []
        if model.d_model % (2 * model.heads):
            problems.append(
                f"model.d_model = {model.d_model} is not a multiple of 2 × model.heads = {2 * model.heads}, as rotary "
                f"positions need; change either"
            )
        if model.kv_heads is not None and model.heads % model.kv_heads:
            problems.append(
                f"model.heads = {model.heads} is not a multiple of model.kv_heads = {model.kv_heads}; change either"
            )
        if model.tie_embeddings and model.format.embedding != model.format.head:
            problems.append(
                f"model.tie_embeddings = true needs one format for both, found model.format.embedding = "
                f"{model.format.embedding} and model.format.head = {model.format.head}; set them alike"
            )
        return problems

    def other_parts(self, section: DecoderConfig, plan: Plan) -> dict[str, int]:
        """Two norms in each block and one after the blocks, and the gates of heads."""
        return {
            "norms: weights": section.d_model * (2 * section.layers + 1),
            "attention gates: weights": section.gated_attention * section.layers * section.heads * section.d_model,
        }

    def unplanned_work(self, config: Config, plan: Plan) -> list[Work]:
        """Causal attention, where a token sees half of the sequence on average, its gates, and a tied output.

        Attention within documents computes all pairs of the sequence and masks them.
        """
        model, length = config.model, config.data.seq_len
        seen = length if config.data.documents == "separate" else length / 2
        head = [tied_head(plan[EMBEDDING])] if model.tie_embeddings else []
        gates = [head_gates(model.layers, model.d_model, model.heads)] if model.gated_attention else []
        return [*head, attention(model.layers, model.d_model, seen), *gates]

    def published(self, config: Config, plan: Plan) -> "Published":
        from comera_dist.models.decoder.llama import as_llama

        return as_llama(config, plan)

    def adopted(self, settings: Settings) -> dict[str, Any]:
        from comera_dist.models.decoder.llama import of_llama

        return of_llama(settings)

    def adopted_rows(self, config: Config, plan: Plan, settings: Settings) -> dict[str, Sequence[int]]:
        """The adopted vocabulary may have rows beyond those of the tokenizer."""
        return dict.fromkeys((f"{EMBEDDING}.weight", f"{HEAD}.weight"), range(plan[EMBEDDING].inputs))


KIND = DecoderKind()
