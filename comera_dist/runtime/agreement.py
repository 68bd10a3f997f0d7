"""Proof that all processes hold the same weights, bit for bit."""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from comera_dist.errors import TrainingError
from comera_dist.runtime.processes import Processes

CHUNK = 1 << 20  # numbers that are summed at once; chosen: 8 MiB of factors, and 8 MiB of products
SPREAD = 0x9E3779B97F4A7C15 - 2**64  # odd, 2⁶⁴ over the golden ratio as int64: Knuth's multiplicative hash


def check_alike(weights: Mapping[str, Tensor], processes: Processes) -> None:
    """TrainingError if the bits of an fp32 weight differ between processes. Collective: one small all-reduce."""
    if not weights:
        return
    sums_W = checksums(list(weights.values()))
    differing = (~processes.are_alike(sums_W)).nonzero().flatten().tolist()
    if not differing:
        return
    name, sums = list(weights)[differing[0]], processes.gather(int(sums_W[differing[0]]))
    majority, _ = Counter(sums).most_common(1)[0]  # with two processes the first
    others = ", ".join(str(index) for index, each in enumerate(sums) if each != majority)
    raise TrainingError(
        f"{name} on process {others} is not {name} on process {sums.index(majority)} ({len(differing)} of "
        f"{len(weights)} parameters differ), expected the same bits on all processes; nothing was saved: check the "
        f"memory and the network of these machines and start the same command again, with train.zero_stage=1 where "
        f"their processors are of different kinds"
    )


def checksums(weights: list[Tensor], chunk: int = CHUNK) -> Tensor:
    """One int64 for each fp32 tensor, computed on its device; a change of a single number always changes it.

    Σ bits · factor modulo 2⁶⁴ over the numbers' bits as integers, with an odd factor for each place; `chunk` at once.
    """
    longest = min(chunk, max(weight.numel() for weight in weights))
    odd_L = torch.arange(longest, device=weights[0].device) * SPREAD | 1
    return torch.stack([_checksum(weight, odd_L, chunk) for weight in weights])


def _checksum(weight: Tensor, odd_L: Tensor, chunk: int) -> Tensor:
    parts = torch.split(weight.detach().reshape(-1).view(torch.int32), chunk)
    sums = torch.stack([(part * odd_L[: len(part)]).sum() for part in parts])
    return (sums * odd_L[: len(sums)]).sum()
