"""A keyed pseudo-random permutation of 0..n-1 in O(1) memory.

A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988)
permutes the smallest domain of 2k bits that holds n. Values outside 0..n-1 go through the network again until they
land inside ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The domain is
smaller than 4n, so a value takes fewer than four turns on average.

Shapes: N values.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6  # chosen: Luby and Rackoff prove that four suffice if the round functions are random


def permute(index_N: NDArray[np.int64], n: int, key: Sequence[int | str]) -> NDArray[np.int64]:
    """Images of `index_N` (each in 0..n-1) under the permutation of 0..n-1 that `key` names."""
    half_bits = max(1, (int(n - 1).bit_length() + 1) // 2)
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * ROUNDS).digest()
    round_keys = np.frombuffer(digest, dtype="<u8")
    image_N = _feistel(np.asarray(index_N, dtype=np.uint64), half_bits, round_keys)
    while (outside_N := image_N >= n).any():
        image_N[outside_N] = _feistel(image_N[outside_N], half_bits, round_keys)
    return image_N.astype(np.int64)


def _feistel(value_N: NDArray[np.uint64], half_bits: int, round_keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left_N, right_N = value_N >> shift, value_N & mask
    for round_key in round_keys:
        left_N, right_N = right_N, left_N ^ (_mix(right_N + round_key) & mask)
    joined_N: NDArray[np.uint64] = (left_N << shift) | right_N
    return joined_N


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
