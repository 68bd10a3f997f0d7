"""Numbers of an optimizer's moments in two bytes or in one, and back in fp32.

bf16: each number is rounded at random, up with a probability in proportion to how near the upper number is. A moment
changes by less than a bf16 number can show: a mean with a decay of 0.999 would stand still if it were rounded to the
nearest. So its expectation stays exact.

8bit: block-wise dynamic quantization (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv
2110.02861). A block of BLOCK numbers has one scale, and each number is the nearest of 256 multiples of it. The scale is
the block's largest number with its sign, which one of the codes stands for, so that numbers that were narrowed and
widened become the same bits again: a resumed run is the uninterrupted one. Unlike in the paper, a square above zero
never becomes zero: AdamW would divide the mean of its gradients by epsilon alone, hundreds of usual steps at once. Rare
rows of a table beside frequent ones have such squares, for which the paper keeps the moments of tables in fp32.

Shapes: N numbers of a moment in any shape, B blocks, K = BLOCK.
"""

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.optim.base import BLOCK, SQUARE, Shape, State
from comera_dist.optim.draws import integers

LOW_BITS = 16  # of an fp32 number that bf16 does not have
DECADES = 7  # of the codes, as in the paper
SCALE = "_scale"  # follows the name of a moment in 8 bits


def blank(shape: Shape, form: str, kind: str, role: str, device: torch.device) -> State:
    """The part of a state that has a moment `kind` of zeros, in "bf16" or "8bit"."""
    if form == "bf16":
        return {kind: torch.zeros(shape, dtype=torch.bfloat16, device=device)}
    zero = int(codes(role == SQUARE, device).numbers.abs().argmin())
    scale_B = torch.zeros(-(-prod(shape) // BLOCK), device=device)
    return {kind: torch.full(shape, zero, dtype=torch.uint8, device=device), kind + SCALE: scale_B}


def narrow(state: State, roles: Mapping[str, str], form: str, key: str) -> None:
    """Replaces the moments in fp32 by numbers of `form`. Random rounding follows from `key`."""
    for kind, role in roles.items():
        if form == "bf16":
            state[kind] = rounded(state[kind], f"{key} {kind}")
        else:
            state[kind], state[kind + SCALE] = encoded(state[kind], role)


def widen(state: State, roles: Mapping[str, str]) -> None:
    """Replaces the moments by the same ones in fp32."""
    for kind, role in roles.items():
        state[kind] = moment(state, kind, role).float()
        state.pop(kind + SCALE, None)


def is_encoded(state: State) -> bool:
    """Whether moments are in 8 bits."""
    return any(key.endswith(SCALE) for key in state)


def moment(state: State, kind: str, role: str) -> Tensor:
    """A moment: decoded if it is in 8 bits, else the state's own tensor."""
    scale_B, kept = state.get(kind + SCALE), state[kind]
    return kept if scale_B is None else decoded(kept, scale_B, role)


def rounded(x: Tensor, key: str) -> Tensor:
    """x of fp32 in bf16: one of the two nearest numbers, with x as the expectation over keys."""
    noise = integers(key, 1 << LOW_BITS, x.shape, x.device)
    bits = (x.view(torch.int32) + noise) >> LOW_BITS << LOW_BITS
    return bits.view(torch.float32).where(x.isfinite(), x).bfloat16()


def encoded(x: Tensor, role: str) -> tuple[Tensor, Tensor]:
    """Codes of x in its shape (uint8), and the scale of each block (B,). Numbers of a role SQUARE are not negative."""
    x_BK = F.pad(x.flatten(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    scale_B1 = x_BK.gather(1, x_BK.abs().argmax(1, keepdim=True))
    share_BK = x_BK / scale_B1.where(scale_B1 != 0, 1)
    code = nearest(share_BK.flatten()[: x.numel()], codes(role == SQUARE, x.device)).view(x.shape)
    if role == SQUARE:
        code = code.where((code > 0) | (x == 0), 1)
    return code, scale_B1.flatten()


def nearest(share_N: Tensor, table: "Codes") -> Tensor:
    """The code (uint8) of the number nearest to each share in [-1, 1]."""
    # Not torch.bucketize, whose binary search takes five times as long on a CPU. The upper half of a share's bits
    # leaves two codes at most, because codes lie further apart than numbers of eight bits.
    half_N = (share_N.view(torch.int32) >> LOW_BITS) & ((1 << LOW_BITS) - 1)
    code_N = table.lowest.index_select(0, half_N)
    return code_N + (share_N > table.bounds.index_select(0, code_N.int()))


def decoded(code: Tensor, scale_B: Tensor, role: str) -> Tensor:
    """The numbers in fp32 that codes and scales stand for."""
    share = codes(role == SQUARE, code.device).numbers.index_select(0, code.flatten().int())
    return (share * scale_B.repeat_interleave(BLOCK)[: len(share)]).view(code.shape)


class Codes(NamedTuple):
    """The numbers of 256 codes in rising order, and how the nearest one is found.

    bounds: the middle between a number and the next, infinite for the last one.
    lowest: for each upper half of the bits of an fp32 number the lowest code that a number with these bits may have.
    """

    numbers: Tensor
    bounds: Tensor
    lowest: Tensor


@cache
def codes(is_square: bool, device: torch.device) -> Codes:
    """The codes of numbers of both signs, or of squares.

    The further a decade below 1, the fewer numbers it has: 2ᵏ from 10ᵏ⁻⁷ to 10ᵏ⁻⁶ for k = 0 to 6, in the middles of
    equal intervals, of both signs; twice as many if no number is negative. 0 and 1 come in addition.
    """
    found = [0.0, 1.0]
    for k in range(DECADES):
        intervals = 2 ** (k + is_square)
        middles = [(0.1 + 0.9 * (2 * i + 1) / (2 * intervals)) * 10.0 ** (k - DECADES + 1) for i in range(intervals)]
        found += middles if is_square else [*middles, *(-number for number in middles)]
    numbers = torch.tensor(sorted(found))
    bounds = (numbers[1:] + numbers[:-1]) / 2
    halves = torch.arange(1 << LOW_BITS, dtype=torch.int32) << LOW_BITS
    ends = torch.stack((halves, halves + (1 << LOW_BITS) - 1)).view(torch.float32)
    lowest = torch.bucketize(ends, bounds).amin(0).to(torch.uint8)
    return Codes(*(tensor.to(device) for tensor in (numbers, F.pad(bounds, (0, 1), value=torch.inf), lowest)))
