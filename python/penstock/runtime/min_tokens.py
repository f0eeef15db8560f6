"""min_tokens on the CPU: token masks that forbid stop tokens until an answer is long enough. On a
GPU, `gpu.logit_adjustments` suppresses these tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
FilledMasks = tuple[npt.NDArray[np.uint32], Ints]


@dataclass(frozen=True, slots=True)
class MinTokensBan:
    """Forbids `tokens` of a row at positions below `until`."""

    tokens: Ints
    until: int

    def mask(self, words: int) -> npt.NDArray[np.uint32]:
        """Return a token mask of `words` 32-bit words that forbids `tokens`. Tokens beyond the mask
        are ignored."""
        mask = np.full(words, 0xFFFFFFFF, np.uint32)
        tokens = self.tokens[(self.tokens >= 0) & (self.tokens < 32 * words)]
        np.bitwise_and.at(mask, tokens // 32, ~(np.uint32(1) << (tokens % 32).astype(np.uint32)))
        return mask


def apply_min_tokens(
    masks: FilledMasks | None,
    bans: Sequence[MinTokensBan | None],
    positions: npt.NDArray[np.integer],
    vocab_size: int,
) -> FilledMasks | None:
    """Return token masks that combine `masks` with min_tokens bans, or `masks` itself if no ban
    applies.

    `masks`: (masks, index of the mask of each sampled position, -1 for none), or None.
    `bans[i]`: the ban of sampled position i, which applies if `positions[i]` is below its limit.

    Positions with the same ban and the same mask share the combined mask.
    """
    known: dict[tuple[int, int], int] = {}
    own: list[npt.NDArray[np.uint32]] = []
    first = 0 if masks is None else len(masks[0])
    mask_of = np.full(len(bans), -1, np.int32) if masks is None else masks[1].copy()
    for place, (one, position) in enumerate(zip(bans, positions.tolist(), strict=True)):
        if one is None or position >= one.until:
            continue
        before = int(mask_of[place])
        if (id(one), before) not in known:
            known[id(one), before] = first + len(own)
            mask = one.mask(-(-vocab_size // 32))
            own.append(mask if masks is None or before < 0 else mask & masks[0][before])
        mask_of[place] = known[id(one), before]
    if not own:
        return masks
    return np.array(own) if masks is None else np.concatenate([masks[0], own]), mask_of
