"""Machines for predictions of whole steps at scale: peaks of data sheets, reachable shares, and latencies of NCCL.

A machine is nothing but these numbers, so the same model predicts GPUs and the CPU on which it was checked
(benchmarks/scale_check.py). No cluster has run this code: figures of GPUs are predicted, not measured. Planners of
formats compare single kernels by `formats/kernel_costs.py` instead, whatever the machine around the device.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

# Assumptions. Large products in bf16 reach 70 to 75 % of an H100's peak in published kernels (Shah et al. 2024,
# FlashAttention-3, arXiv 2407.08608: 740 of 989 TFLOP/s); operations that only read and write reach a little less than
# the bandwidth of memory, and collectives than that of links. Whole steps of Llama 3 reached 38 to 43 % of the peak on
# up to 16,384 H100 (Grattafiori et al. 2024, arXiv 2407.21783, table 4), their exchanges included.
PRODUCT_SHARE, MEMORY_SHARE, LINK_SHARE = 0.7, 0.85, 0.8
# Seconds of the host for each operation of an eager step: an assumption, of the order of torch's own overhead.
LAUNCH = 5e-6


@dataclass(frozen=True)
class Protocol:
    """Seconds of a collective: start + its hops within a node · local + its hops between nodes · network + bytes sent
    over `share` of the links' rate."""

    share: float
    start: float
    local: float
    network: float


# Of LL, LL128 and Simple, from which NCCL takes the fastest by this formula: src/graph/tuning.cc of
# github.com/NVIDIA/nccl at commit 01afd20.
RINGS = (
    Protocol(1 / 4, 3.6e-6, 1.8 * 0.47e-6, 2.7e-6),
    Protocol(0.92, 10e-6, 1.9e-6, 4.0e-6),
    Protocol(1.0, 8.4e-6, 3.4e-6, 9.6e-6),
)
TREES = (
    Protocol(0.9 / 3.8, 4.4e-6, 1.8 * 0.52e-6, 5.0e-6),
    Protocol(0.9 * 0.915, 4.4e-6, 1.2e-6, 8.5e-6),
    Protocol(0.9, 0.0, 28e-6, 50e-6),
)


@dataclass(frozen=True)
class Machine:
    """What a process of a run has, in FLOPs, bytes and seconds; rates are reachable ones, in one direction.

    flops: rate of products by bytes of a number. peak: the same by the data sheet, empty if there is none. bandwidth:
    of operations of the model. stream: of passes over all parameters. memory: bytes of its device, None if it is not
    limited. local_link, network: sending within a node and between nodes. launch: least seconds of an operation.
    rings, trees: protocols of collectives; only all-reduces have trees. host_rate: bytes a second that a core can send
    and receive; the network interfaces of GPUs need no core. waiting: seconds of a step in which processes wait for
    each other. cores: cores that all processes share, whose memory has the rate `stream` in all; None if each process
    has a device of its own.
    """

    name: str
    flops: Mapping[int, float]
    bandwidth: float
    stream: float
    memory: float | None
    local_link: float
    network: float
    launch: float
    rings: tuple[Protocol, ...]
    trees: tuple[Protocol, ...] = ()
    host_rate: float = math.inf
    waiting: float = 0.0
    cores: int | None = None
    peak: Mapping[int, float] = field(default_factory=dict)


def _gpu(name: str, bf16: float, fp32: float, memory: float, bandwidth: float, link: float, network: float) -> Machine:
    return Machine(
        name=name,
        flops={2: PRODUCT_SHARE * bf16, 4: PRODUCT_SHARE * fp32},
        bandwidth=MEMORY_SHARE * bandwidth,
        stream=MEMORY_SHARE * bandwidth,
        memory=memory,
        local_link=LINK_SHARE * link,
        network=LINK_SHARE * network,
        launch=LAUNCH,
        rings=RINGS,
        trees=TREES,
        peak={2: bf16, 4: fp32},
    )


# NVIDIA's data sheets: dense bf16, fp32 without TF32, memory, its bandwidth, half of NVLink's total of both directions.
# The network is one interface a GPU, as in NVIDIA's DGX systems: ConnectX-7 of 400 Gbit/s, or ConnectX-6 of 200.
MACHINES = {
    "h100": _gpu("H100 SXM", 989e12, 67e12, 80e9, 3.35e12, 450e9, 50e9),
    "h200": _gpu("H200 SXM", 989e12, 67e12, 141e9, 4.8e12, 450e9, 50e9),
    "a100": _gpu("A100 SXM 80 GB", 312e12, 19.5e12, 80e9, 2.0e12, 300e9, 25e9),
}
