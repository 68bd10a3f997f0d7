"""The decoder as a kind of model."""

from typing import TYPE_CHECKING

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.base import Kind
from comera_dist.models.decoder.checks import decoder_problems
from comera_dist.models.decoder.costs import decoder_work, norm_weights
from comera_dist.models.decoder.plan import HEAD, DecoderFacts, format_key, plan_decoder
from comera_dist.models.decoder.section import DecoderConfig
from comera_dist.models.work import Work

if TYPE_CHECKING:
    import torch

    from comera_dist.models.decoder.kv_cache import KeyValueCache
    from comera_dist.models.decoder.model import Decoder
    from comera_dist.models.decoder.task import LanguageModelling


class DecoderKind(Kind[DecoderFacts]):
    """A LLaMA-compatible decoder that models language."""

    section = DecoderConfig
    without_data = "give --vocab-size"
    logits_layer = HEAD
    block_keys = ("attention", "mlp")
    free_keys = frozenset({"format", "kv_heads"})  # heads may be counted in two ways; their matrices are compared

    def plan(self, config: Config, facts: DecoderFacts) -> Plan:
        return plan_decoder(config, facts.vocab_size)

    def build(self, section: DecoderConfig, plan: Plan, generator: "torch.Generator | None") -> "Decoder":
        from comera_dist.models.decoder.model import Decoder

        return Decoder(section, plan, generator)

    def open_task(self, config: Config) -> "LanguageModelling":
        from comera_dist.models.decoder.task import LanguageModelling

        return LanguageModelling(config)

    def format_key(self, name: str) -> str:
        return format_key(name)

    def known_facts(self, section: DecoderConfig, vocab_size: int | None) -> DecoderFacts | None:
        return DecoderFacts(vocab_size) if vocab_size else None

    def problems(self, config: Config) -> list[str]:
        return decoder_problems(config)

    def other_parts(self, section: DecoderConfig) -> dict[str, int]:
        return {"norms: weights": norm_weights(section)}

    def unplanned_work(self, config: Config, plan: Plan) -> list[Work]:
        return decoder_work(config, plan)

    def empty_cache(self, section: DecoderConfig, capacity: int, device: "torch.device") -> "KeyValueCache":
        from comera_dist.models.decoder.kv_cache import KeyValueCache

        return KeyValueCache(section, capacity, device=device)


KIND = DecoderKind()
