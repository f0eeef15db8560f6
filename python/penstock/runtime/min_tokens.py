"""Tokens that may not be sampled until an answer is long enough: as masks for a step that the host
samples in. A device has its own table of them (`gpu.logit_adjustments`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
FilledMasks = tuple[npt.NDArray[np.uint32], Ints]


@dataclass(frozen=True, slots=True)
class MinTokensBan:
    """The `tokens` of a row that are not sampled at positions below `until`."""

    tokens: Ints
    until: int

    def mask(self, words: int) -> npt.NDArray[np.uint32]:
        """A mask of so many words that forbids the tokens, as far as it has bits for them."""
        mask = np.full(words, 0xFFFFFFFF, np.uint32)
        tokens = self.tokens[(self.tokens >= 0) & (self.tokens < 32 * words)]
        np.bitwise_and.at(mask, tokens // 32, ~(np.uint32(1) << (tokens % 32).astype(np.uint32)))
        return mask


def apply_min_tokens(
    masks: FilledMasks | None,
    held: Sequence[MinTokensBan | None],
    positions: npt.NDArray[np.integer],
    vocab_size: int,
) -> FilledMasks | None:
    """`masks`, and in place of them others where the draw of a place, at `positions[i]`, has tokens
    held back by `held[i]`. Places of one row that have no mask share one."""
    known: dict[tuple[int, int], int] = {}
    own: list[npt.NDArray[np.uint32]] = []
    first = 0 if masks is None else len(masks[0])
    mask_of = np.full(len(held), -1, np.int32) if masks is None else masks[1].copy()
    for place, (one, position) in enumerate(zip(held, positions.tolist(), strict=True)):
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
