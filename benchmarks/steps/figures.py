"""The figures of a row: FLOPs counted by torch, bytes of tensors, and ratios of times taken in turn."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from benchmarks.report import ratios, spread
from benchmarks.roofline import Rates
from benchmarks.steps.cases import Case, Side

UNKNOWN = "–"
aten = torch.ops.aten


def _product_flops(total: torch.Size, left: torch.Size, right: torch.Size, *_, **__) -> int:
    return 2 * left[0] * left[1] * right[1]


# Operations that torch's counter does not know: products that are added in place or in a wider dtype (as Liger's kernel
# does; torch 2.11 takes the dtype for a shape), and attention on CPUs.
NOT_COUNTED_BY_TORCH = {
    aten.addmm_: _product_flops,
    aten.addmm: _product_flops,
    aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
}


@dataclass
class Result:
    """Measurements of one side; `peak_bytes` is None until it is measured."""

    side: Side
    parameters: int
    tokens: int
    milliseconds: list[float]
    flops: int  # forward and backward
    optimizer_bytes: int
    gradient_bytes: int
    peak_bytes: int | None = None


def counted_flops(call: Callable[[], object]) -> int:
    """2 x the multiply-adds of all matrix products and of attention, which counts as not causal."""
    with FlopCounterMode(display=False, custom_mapping=NOT_COUNTED_BY_TORCH) as counter:
        call()
    return counter.get_total_flops()


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of all tensors that the optimizer keeps between steps; GaLore wraps its projections in objects."""
    kept = (getattr(value, "ortho_matrix", value) for state in optimizer.state.values() for value in state.values())
    return sum(tensor.nbytes for tensor in kept if isinstance(tensor, torch.Tensor))


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of all gradients, each as large as its parameter."""
    return sum(p.nbytes for p in model.parameters() if p.requires_grad)


def rows_of(case: Case, device_type: str, results: list[Result], rates: Rates) -> list[dict]:
    """A row for each side. Ratios compare turn by turn with dense AdamW in the same mode and in its fastest mode."""
    dense = {result.side.mode: result.milliseconds for result in results if result.side.is_baseline}
    fastest = min(dense.values(), key=statistics.median, default=None)
    return [
        {
            "case": case.label(device_type),
            "side": result.side.name,
            "parameters": result.parameters,
            "step ms: median (range)": spread(result.milliseconds),
            "tokens/s": round(1000 * result.tokens / statistics.median(result.milliseconds)),
            "times as fast as dense": _ratio(dense.get(result.side.mode), result.milliseconds),
            "times as fast as the fastest dense": _ratio(fastest, result.milliseconds),
            "peak memory MiB": UNKNOWN if result.peak_bytes is None else result.peak_bytes >> 20,
            "optimizer MiB": _mebibytes(result.optimizer_bytes),
            "gradient MiB": _mebibytes(result.gradient_bytes),
            **_rate(result, rates),
        }
        for result in results
    ]


def _ratio(theirs: list[float] | None, mine: list[float]) -> str:
    if theirs is None:
        return UNKNOWN
    return "1" if mine is theirs else spread(ratios(theirs, mine), 2)


def _rate(result: Result, rates: Rates) -> dict:
    flops_per_ms = result.flops / statistics.median(result.milliseconds)
    return {"TFLOP/s": f"{flops_per_ms / 1e9:.3f}", "MFU": f"{flops_per_ms / rates.flops_per_ms:.1%}"}


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"
