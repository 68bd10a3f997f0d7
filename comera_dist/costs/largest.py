"""The largest model of a run's depth and proportions that one GPU trains, beside dense ones."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from comera_dist.config.registry import OPTIMIZERS
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate, estimate
from comera_dist.costs.exchange import Cluster
from comera_dist.costs.machines import MACHINES
from comera_dist.costs.of_run import plan_run
from comera_dist.costs.scale import USABLE, Side, at_stage, dense_twin
from comera_dist.costs.widths import WIDEST, feed_forward_width, widest_fitting, widths
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.models.decoder.section import DecoderConfig

GROWTH = 1.03  # of one tried width to the next; chosen: a model is then within a tenth of the largest,
# unless one key head and its query heads are wider
FURTHER = 1.15  # of one width to another that needs less memory: up to 1.1 of block trains at widths up to 600
ALONE = Cluster(MACHINES["h100"], 1, 1)  # one process; bytes do not depend on the machine


@dataclass(frozen=True)
class Sized:
    """A side at a width; bytes are those of the one process."""

    side: str
    width: int
    params: int  # stored
    dense_params: int  # of the dense model of this shape
    state_bytes: int  # weights, gradients and the optimizer's numbers
    peak_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def largest_models(config: Config, vocab_size: int | None, gigabytes: Sequence[float]) -> dict[float, list[Sized]]:
    """The widest model of each side that trains at ZeRO stage 0, for each size of a GPU's memory in 10⁹ bytes.

    Head size, depth, ratios of d_ff to the width and of key to query heads, ranks and the batch are those of the run;
    a single key head stays one. USABLE of the memory is for tensors. Raises ConfigError and DataError.
    """
    if not isinstance(config.model, DecoderConfig):
        raise ConfigError(f"model.kind = {config.model.kind} was found, but --fits widens decoders; choose a decoder")
    found: dict[float, list[Sized]] = {size: [] for size in gigabytes}
    for name, side in _sides(at_stage(config, 0)):
        peaks = _Peaks(name, side, vocab_size)
        for size, models in found.items():
            models.append(peaks.widest(USABLE * 1e9 * size))
    return found


def _sides(config: Config) -> Iterator[tuple[str, Config]]:
    dense = dense_twin(config)
    yield f"this run, {config.optim.kind}", config
    for kind in dict.fromkeys((dense.optim.kind, "adamw", "galore")):
        moments = config.optim.moments if OPTIMIZERS[kind].can_round else "fp32"
        optim = dense.optim.model_copy(update={"kind": kind, "moments": moments})
        yield f"dense, {kind}", dense.model_copy(update={"optim": optim})


class _Peaks:
    """A side at all widths."""

    def __init__(self, name: str, config: Config, vocab_size: int | None):
        self._name, self._config, self._vocab_size = name, config, vocab_size
        self._costs_at, self._at = cache(self._costs), cache(self._sized)
        self._widths = widths(_unit(config), GROWTH, WIDEST)

    def widest(self, usable: float) -> Sized:
        """The widest model whose peak is at most `usable` bytes."""
        found = widest_fitting(self._widths, lambda width: self._exceeds(usable, width), FURTHER)
        if found is None:
            least = self._at(self._widths[0])
            raise ConfigError(
                f"{usable / 1e9:.3g} GB are usable, and the narrowest model ({self._name}, width {least.width}) needs "
                f"{least.peak_bytes / 1e9:.3g}; give more GB to --fits, or lower train.micro_batch or data.seq_len"
            )
        return self._at(found)

    def _exceeds(self, usable: float, width: int) -> bool:
        # Most widths that are too great are so by their state alone, which needs no step.
        return self._costs_at(width)[-1].state_bytes_per_process > usable or self._at(width).peak_bytes > usable

    def _costs(self, width: int) -> tuple[Config, Plan, Estimate]:
        config = _widened(self._config, width)
        plan = plan_run(config, self._vocab_size, 1, "cuda")
        return config, plan, estimate(config, plan, 1, config.tokens_per_forward(1), "cuda")

    def _sized(self, width: int) -> Sized:
        config, plan, costs = self._costs_at(width)
        peak = Side(self._name, config, plan).memory_bytes(0, ALONE)
        return Sized(self._name, width, costs.params, costs.dense_params, round(costs.state_bytes_per_process), peak)


def _widened(config: Config, width: int) -> Config:
    model = config.model
    sizes: dict[str, Any] = {
        "d_model": width,
        "heads": width * model.heads // model.d_model,
        "kv_heads": model.kv_heads if model.kv_heads in (None, 1) else width * model.kv_heads // model.d_model,
        "d_ff": feed_forward_width(model.d_ff, model.d_model, width),
    }
    return config.model_copy(update={"model": model.model_copy(update=sizes)})


def _unit(config: Config) -> int:
    """The width of one key head and the query heads that share it, or of one query head where all share one."""
    heads, kv_heads = config.model.heads, config.model.kv_heads
    width: int = config.model.d_model // (heads if kv_heads in (None, 1) else kv_heads)
    return width
