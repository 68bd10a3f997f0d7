"""Seconds of single kernels on a device: planners of formats compare the ways to compute one matrix by them.

The rates are those of a data sheet or of one kernel, because only their ratios matter here. `costs/machines.py` has
those of whole steps: reachable rates, links between processes, and memory.
"""

from dataclasses import dataclass
from math import prod

from comera_dist.formats.base import BF16, FP32, Product

# Another plan must cost less than this share of the default plan. Chosen: costs are not exact near equality.
MARGIN = 0.9


@dataclass(frozen=True)
class Kernels:
    """FLOPs and bytes a second of a device, the least seconds of a kernel, and how many numbers a matrix unit takes."""

    flops: float
    bandwidth: float
    launch: float
    lanes: int

    def seconds(self, product: Product, itemsize: int, permutes: bool, count: int = 1) -> float:
        """Seconds of `count` equal products as one kernel and, with `permutes`, of bringing operands into order first.

        Bringing into order counts as three more passes over the product's numbers and two more kernels: so fitted, 20
        of 21 choices were right on layers and token counts that were measured both ways on a CPU.
        """
        work = 2 * count * prod(-(-size // self.lanes) * self.lanes for size in product)
        passing = count * product.numbers * itemsize / self.bandwidth
        alone = max(work / self.flops, passing, self.launch)
        return alone + (3 * passing + 2 * self.launch if permutes else 0.0)

    def batch_seconds(self, product: Product, count: int) -> float:
        """Seconds of `count` equal small products in fp32, as one kernel."""
        moved = count * product.numbers * FP32
        return max(count * product.flops / self.flops, moved / self.bandwidth, self.launch)


CPU = Kernels(2.0e11, 3.6e10, 5e-6, 16)
# By device and bytes of a number. cpu: a 2048² product, a large copy and a small product on two cores of an AMD EPYC
# with AVX-512, torch 2.13; in bf16 fitted to times of layers on an Intel Xeon with AMX, as in block_path.py. cuda:
# NVIDIA's H200 data sheet (dense bf16, fp32 without TF32, memory); the launch is an assumption. Only their ratios
# matter, and only where two paths are close.
KERNELS = {
    ("cpu", BF16): Kernels(1.2e12, 1.8e10, 5e-6, 16),
    ("cpu", FP32): CPU,
    ("cuda", BF16): Kernels(9.9e14, 4.8e12, 2e-6, 16),
    ("cuda", FP32): Kernels(6.7e13, 4.8e12, 2e-6, 16),
}


def kernels_of(device_type: str, itemsize: int) -> Kernels:
    """The figures of a device for numbers of `itemsize` bytes; those of the CPU in fp32 if there are none."""
    return KERNELS.get((device_type, itemsize), CPU)


def power_of_two(count: int) -> int:
    """The next power of two: counts up to it share a plan, so that few plans are made."""
    return 1 << max(0, count - 1).bit_length()
