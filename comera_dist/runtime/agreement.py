"""Proof that all processes hold the same weights, bit for bit."""

from collections import Counter

import torch
from torch import Tensor

from comera_dist.errors import TrainingError
from comera_dist.runtime.processes import Processes

CHUNK = 1 << 20  # numbers that are summed at once: 8 MiB of factors, and 8 MiB of products
SPREAD = 0x9E3779B97F4A7C15 - 2**64  # odd, 2⁶⁴ over the golden ratio as int64: Knuth's multiplicative hash


def check_alike(weights: dict[str, Tensor], processes: Processes) -> None:
    """TrainingError where the bits of an fp32 weight differ between processes. Collective: one small all-reduce."""
    if not weights:
        return
    sums_P = checksums(list(weights.values()))
    differing = (~processes.are_alike(sums_P)).nonzero().flatten().tolist()
    if differing:
        found = _parting(processes.gather(int(sums_P[differing[0]])), list(weights)[differing[0]])
        raise TrainingError(
            f"{found} ({len(differing)} of {len(weights)} parameters differ), expected the same bits on all processes; "
            f"nothing was saved: check the memory and the network of these machines and start the same command again, "
            f"with train.zero_stage=1 where their processors are of different kinds"
        )


def checksums(weights: list[Tensor], chunk: int = CHUNK) -> Tensor:
    """One int64 for each fp32 tensor, computed where it lies; a change of a single number always changes it.

    Σ number · factor modulo 2⁶⁴ over the bits of the numbers, with an odd factor for each place; `chunk` of them at
    once.
    """
    longest = min(chunk, max(weight.numel() for weight in weights))
    odd_L = torch.arange(longest, device=weights[0].device) * SPREAD | 1
    return torch.stack([_checksum(weight, odd_L, chunk) for weight in weights])


def _checksum(weight: Tensor, odd_L: Tensor, chunk: int) -> Tensor:
    parts = weight.detach().reshape(-1).view(torch.int32).split(chunk)
    sums = torch.stack([(part * odd_L[: len(part)]).sum() for part in parts])
    return (sums * odd_L[: len(sums)]).sum()


def _parting(sums: list[int], name: str) -> str:
    """Names the processes that are not with the majority, with two processes the second."""
    common, _ = Counter(sums).most_common(1)[0]
    others = [str(index) for index, each in enumerate(sums) if each != common]
    return f"{name} on process {', '.join(others)} is not {name} on process {sums.index(common)}"
