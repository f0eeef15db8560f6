"""The random numbers of sampling: the first output word of Philox 4x32-10."""

from __future__ import annotations

from penstock.kernels.triton.language import tl, triton


@triton.jit
def uniform(seed, position):
    """Return the random number for (seed, position), both uint64: a multiple of 2^-24 in [0, 1)."""
    LOW: tl.constexpr = 0xFFFFFFFF
    c0, c1 = position & LOW, position >> 32
    c2, c3 = c0 & 0, c0 & 0
    k0, k1 = seed & LOW, seed >> 32
    for _ in tl.static_range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (second >> 32) ^ c1 ^ k0, second & LOW
        c2, c3 = (first >> 32) ^ c3 ^ k1, first & LOW
        k0, k1 = (k0 + 0x9E3779B9) & LOW, (k1 + 0xBB67AE85) & LOW
    return (c0 >> 8).to(tl.float32) * (1.0 / 16777216.0)
