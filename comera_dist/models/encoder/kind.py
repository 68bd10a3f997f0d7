"""The encoder as a kind of model; its head decides the output, the task and the positions that are read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.adopted import Settings
from comera_dist.models.base import Kind
from comera_dist.models.encoder.families import FAMILIES
from comera_dist.models.encoder.heads import HEADS
from comera_dist.models.encoder.plan import BLOCKS, EMBEDDINGS, WORDS, EncoderFacts, format_key, plan_encoder
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.work import Work, attention, tied_head

if TYPE_CHECKING:
    import torch

    from comera_dist.data.tasks import Task
    from comera_dist.models.published import Published


class EncoderKind(Kind[EncoderFacts]):
    """A BERT-style encoder of pairs of texts."""

    section = EncoderConfig
    without_data = "give --vocab-size, and model.classes if model.head = classification"
    # Dropout acts in training only; both sizes may be null, and the matrices are compared.
    free_keys = frozenset({"format", "dropout", "vocab_size", "classes"})
    recomputes_blocks = True
    learns_from_teachers = True
    block_keys = ("attention", "mlp")
    has_biases = True
    adopts = tuple(family.model_type for family in FAMILIES.values())

    def plan(self, config: Config, facts: EncoderFacts) -> Plan:
        return plan_encoder(config, facts)

    def build(self, section: EncoderConfig, plan: Plan, generator: "torch.Generator | None") -> "torch.nn.Module":
        from comera_dist.models.encoder.model import MODELS

        return MODELS[section.head](section, plan, generator)

    def open_task(self, config: Config) -> "Task[EncoderFacts]":
        from comera_dist.models.encoder.task import TASKS

        return TASKS[config.model.head](config)

    def blank_batch(self, config: Config, rows: int) -> "tuple[torch.Tensor, ...]":
        import torch

        head, tokens_BS = HEADS[config.model.head], torch.zeros(rows, config.data.seq_len, dtype=torch.long)
        places_BP = torch.zeros(rows, head.places(config.data), dtype=torch.long)
        read = (places_BP, places_BP.clone()) if head.is_tied else (places_BP[:, 0],)
        return tokens_BS, tokens_BS.clone(), *read

    def format_key(self, name: str) -> str:
        return format_key(name)

    def known_facts(self, section: EncoderConfig, vocab_size: int | None) -> EncoderFacts | None:
        vocab_size = vocab_size or section.vocab_size
        if not vocab_size or not (HEADS[section.head].is_tied or section.classes):
            return None
        return EncoderFacts(vocab_size, section.classes or 0)

    def problems(self, config: Config) -> list[str]:
        model, length, problems = config.model, config.data.seq_len, []
        if model.d_model % model.heads:
            problems.append(
                f"model.d_model = {model.d_model} is not a multiple of model.heads = {model.heads}; change either"
            )
        if length > model.positions:
            problems.append(
                f"data.seq_len = {length} is longer than model.positions = {model.positions}; change either"
            )
        return problems

    def idle_keys(self, config: Config) -> dict[str, str]:
        model, idle = config.model, {}
        if model.output_bias and not HEADS[model.head].is_tied:
            idle["model.output_bias"] = (
                f"model.output_bias = true is for model.head = masked_lm, and model.head = {model.head} always has a "
                f"bias; remove it"
            )
        if model.classes is not None and HEADS[model.head].is_tied:
            idle["model.classes"] = (
                f"model.classes = {model.classes} is for model.head = classification, and model.head = {model.head} "
                f"has no classes; remove it"
            )
        return idle

    def row_keys(self, config: Config) -> frozenset[str]:
        return HEADS[config.model.head].row_keys

    def other_parts(self, section: EncoderConfig, plan: Plan) -> dict[str, int]:
        """Norms: two in each block, one before (post-norm) or after (pre-norm) the blocks, and those of the head."""
        norms = section.d_model * (2 * section.layers + 1 + HEADS[section.head].norms)
        bias = plan[WORDS].inputs if section.output_bias else 0
        return {"norms: weights": norms, "norms: biases": norms, "predictions: biases": bias}

    def token_share(self, config: Config, name: str) -> float:
        """1 for embeddings and blocks; the head reads only some positions of a row."""
        return 1.0 if name.startswith((EMBEDDINGS, BLOCKS)) else _head_share(config)

    def unplanned_work(self, config: Config, plan: Plan) -> list[Work]:
        """Attention, where a token sees the whole sequence, and a tied output."""
        model = config.model
        head = [tied_head(plan[WORDS], _head_share(config))] if HEADS[model.head].is_tied else []
        return [*head, attention(model.layers, model.d_model, config.data.seq_len)]

    def published(self, config: Config, plan: Plan) -> "Published":
        from comera_dist.models.encoder.as_bert import as_bert

        return as_bert(config, plan)

    def adopted(self, settings: Settings) -> dict[str, Any]:
        from comera_dist.models.encoder.of_bert import of_bert

        return of_bert(settings)

    def adopted_rows(self, config: Config, plan: Plan, settings: Settings) -> dict[str, Sequence[int]]:
        from comera_dist.models.encoder.of_bert import rows_of_bert

        return rows_of_bert(config, plan, settings)


def _head_share(config: Config) -> float:
    return HEADS[config.model.head].places(config.data) / config.data.seq_len


KIND = EncoderKind()
