"""Reference of the sampler: Philox random numbers, sampling from a row of logits,
log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.kernels.ops.adjust_reference import adjust_logits
from penstock.kernels.sampler_inputs import FAILED, SamplingRows

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox(counter: tuple[Any, ...], key: tuple[Any, Any]) -> tuple[npt.NDArray[np.uint64], ...]:
    """Return the four output words of Philox 4x32-10 (Salmon et al., SC 2011) for four counter
    words and two key words. All words are uint64 arrays of 32-bit values."""
    c0, c1, c2, c3 = (np.atleast_1d(np.asarray(word, dtype=np.uint64)) for word in counter)
    k0, k1 = (np.atleast_1d(np.asarray(word, dtype=np.uint64)) for word in key)
    for _ in range(10):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1 = (second >> _SHIFT) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _SHIFT) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return c0, c1, c2, c3


def uniform(
    seed: npt.NDArray[np.uint64], position: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Return a uniform random number for each (seed, position): a multiple of 2^-24 in [0, 1)."""
    zero = np.zeros_like(position)
    counter = (position & _LOW, position >> _SHIFT, zero, zero)
    first, *_ = philox(counter, (seed & _LOW, seed >> _SHIFT))
    numbers: npt.NDArray[np.float64] = (first >> np.uint64(8)).astype(np.float64) * 2.0**-24
    return numbers


def sample(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Return the sampled token of each row: [S] int32, negative for a row without a token. `logits:
    [S, V]` are adjusted in place."""
    barren = adjust_logits(logits, rows)
    samples = uniform(_bits(rows.seed), _bits(rows.position))
    tokens = [
        int(barren[row])
        or sample_row(
            logits[row],
            float(rows.temperature[row]),
            int(rows.top_k[row]),
            float(rows.top_p[row]),
            float(rows.min_p[row]),
            float(samples[row]),
        )
        for row in range(len(logits))
    ]
    return torch.tensor(tokens, dtype=torch.int32, device=logits.device)


def _bits(column: Any) -> npt.NDArray[np.uint64]:
    """Return an array of 64-bit integers, or a device tensor with their bits, as uint64."""
    array = column.cpu().numpy() if isinstance(column, torch.Tensor) else column
    return np.asarray(array).view(np.uint64)


def sample_row(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float, number: float
) -> int:
    """Return the token that the uniform number `number` selects from a row of logits [V], or
    FAILED."""
    highest = logits.max()  # NaN if any logit is NaN
    if not torch.isfinite(highest):
        return FAILED
    if temperature == 0 or top_p == 0:
        return int((logits == highest).nonzero()[0])
    order = torch.sort(logits, descending=True, stable=True).indices
    if 0 < top_k < len(order):
        order = order[:top_k]
    mass = (logits[order] / temperature).softmax(dim=0)
    if top_p < 1:
        order = order[: 1 + int((mass.cumsum(0) < top_p).sum())]
    mass = mass[: len(order)]
    kept = torch.sort(order[mass >= min_p * mass[0]]).values
    weights = torch.exp((logits[kept] - highest) / temperature)
    reached = weights.cumsum(0)
    return int(kept[int((reached <= number * reached[-1]).sum())])


def top_logprobs(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities for the rows `rows: [R]` of `logits: [S, V]`: of `tokens: [R]`, then
    the ids and the log-probabilities of the `count` best tokens of each row. The lower id comes
    first among equals. A row that cannot be sampled has NaN, and ids of -1."""
    chosen = logits[rows.long()]
    logprobs = chosen.log_softmax(dim=1)
    values, ids = (part[:, :count] for part in torch.sort(logprobs, descending=True, stable=True))
    own = logprobs.gather(1, tokens.long()[:, None])[:, 0]
    usable = chosen.amax(dim=1).isfinite()  # false for NaN
    nan = float("nan")
    return (
        own.where(usable, nan),
        ids.where(usable[:, None], -1).int(),
        values.where(usable[:, None], nan),
    )
