"""A keyed pseudo-random permutation of 0..n-1 in O(1) memory.

A Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions",
1988) permutes the smallest 2k-bit domain that holds n; values that land outside of 0..n-1 are sent through
again until they land inside ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). The domain is less than 4n, so a value takes fewer than four turns on average.
"""

import hashlib

import numpy as np

ROUNDS = 6


def permute(index_N: np.ndarray, n: int, key: tuple[int, ...]) -> np.ndarray:
    """Images of `index_N` (each in 0..n-1) under the permutation of 0..n-1 that `key` names; int64 (N,)."""
    half_bits = max(1, (int(n - 1).bit_length() + 1) // 2)
    round_keys = _round_keys(key)
    image_N = _feistel(np.asarray(index_N, dtype=np.uint64), half_bits, round_keys)
    while (outside_N := image_N >= n).any():
        image_N[outside_N] = _feistel(image_N[outside_N], half_bits, round_keys)
    return image_N.astype(np.int64)


def _round_keys(key: tuple[int, ...]) -> np.ndarray:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8")


def _feistel(value_N: np.ndarray, half_bits: int, round_keys: np.ndarray) -> np.ndarray:
    mask, shift = np.uint64((1 << half_bits) - 1), np.uint64(half_bits)
    left_N: np.ndarray = value_N >> shift
    right_N: np.ndarray = value_N & mask
    for round_key in round_keys:
        left_N, right_N = right_N, left_N ^ (_mix(right_N + round_key) & mask)
    joined_N: np.ndarray = (left_N << shift) | right_N
    return joined_N


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
