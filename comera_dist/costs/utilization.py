"""The FLOPs that a run achieves, beside the peak of its devices."""

from comera_dist.costs.machines import MACHINES
from comera_dist.costs.step_costs import product_itemsize

# Names that CUDA gives to the devices of the data sheets in `machines`. Other variants of them have other peaks.
DEVICES = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200", "NVIDIA A100-SXM4-80GB": "a100"}


def peak_flops(device_name: str, precision: str) -> float | None:
    """FLOP/s of dense products by the data sheet of a CUDA device; None for a device that is not in DEVICES."""
    machine = DEVICES.get(device_name)
    return MACHINES[machine].peak[product_itemsize(precision)] if machine else None


def utilization(flops: float, seconds: float, peak: float | None) -> dict[str, float]:
    """Figures of steps of `flops` FLOPs in `seconds` on devices whose peak is `peak` FLOP/s in all.

    `flops_per_second`, and with a peak `mfu`, the share of it (Chowdhery et al. 2022, arXiv 2204.02311, section 4.1).
    The FLOPs are those of the model: recomputed activations and the optimizer do not count.
    """
    rate = flops / seconds
    return {"flops_per_second": rate} | ({} if peak is None else {"mfu": rate / peak})
