"""Sampling parameters for the logits of some tokens instead of all.

The sampler takes the token at which the cumulated probabilities, in the order of ids, exceed the
random number of the position. The tokens of a draft head keep this order, so draft and target
sample the same token as often as their cumulated probabilities agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.kernels.sampler_inputs import SamplingRows, SeenTokens, TokenValues

Ints = npt.NDArray[np.int32]


def restricted(rows: SamplingRows, ids: Ints, places_of: Callable[[Ints], Ints]) -> SamplingRows:
    """Return `rows` for logits of the tokens `ids` alone. `places_of` returns the place of each
    token in `ids`, -1 for others."""
    bias, dry, seen, masks = rows.bias, rows.dry, rows.seen, rows.masks
    return replace(
        rows,
        bias=None if bias is None else _values(bias, places_of),
        dry=None if dry is None else _values(dry, places_of),
        seen=None if seen is None else _seen(seen, places_of),
        masks=None if masks is None else _masks(masks, ids),
    )


def _values(values: TokenValues, places_of: Callable[[Ints], Ints]) -> TokenValues:
    places = places_of(values.tokens)
    kept = places >= 0
    return TokenValues(_starts(values.starts, kept), places[kept], values.values[kept])


def _seen(seen: SeenTokens, places_of: Callable[[Ints], Ints]) -> SeenTokens:
    places = places_of(seen.tokens)
    kept = places >= 0
    starts, counts = _starts(seen.starts, kept), seen.counts[kept]
    return replace(seen, starts=starts, tokens=places[kept], counts=counts)


def _starts(starts: Ints, kept: npt.NDArray[np.bool_]) -> Ints:
    """Return the beginnings of the lists once entries that are not `kept` have been dropped."""
    counts = np.concatenate([[0], np.cumsum(kept)])
    return counts[starts].astype(np.int32)


def _masks(masks: npt.NDArray[np.uint32], ids: Ints) -> npt.NDArray[np.uint32]:
    words = masks.astype("<u4", copy=False).view(np.uint8)
    bits = np.unpackbits(words, axis=1, bitorder="little")[:, ids]
    packed = np.packbits(np.pad(bits, ((0, 0), (0, -len(ids) % 32))), axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4").astype(np.uint32, copy=False)
