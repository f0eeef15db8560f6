"""Inputs and results of the sampler: the specification for the reference, native and Triton
implementations.

Each row is processed in this order: bias, presence and frequency penalty, repetition penalty, DRY,
grammar mask; temperature, top-k, top-p, min-p, sampling. The first five adjust the logits
(`adjust_logits`); log-probabilities are computed from adjusted logits. Random numbers are
counter-based: one uniform number from Philox 4x32-10 with key = seed and counter = position, so an
answer never depends on the rest of the batch.

Adjustments of few tokens are lists of these tokens. A list is None if no row of the batch needs the
adjustment, which then costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenValues:
    """Lists of tokens with a value each, one list per row for S rows. A list contains a token at
    most once.

    `starts`: [S + 1] int32; row s has the entries starts[s] .. starts[s + 1] - 1 of `tokens` and
        `values`. Begins with 0 and ends with their length.
    `tokens`: int32.
    `values`: float32, finite.
    """

    starts: Ints
    tokens: Ints
    values: Floats

    def row(self, index: int) -> TokenValues:
        """Return the list of row `index` alone."""
        span = slice(*self.starts[index : index + 2].tolist())
        return TokenValues(_alone(span), self.tokens[span], self.values[span])


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """The tokens of each row's prompt and answer so far, and the penalties for their repetition.

    `starts`, `tokens`: as in `TokenValues`.
    `counts`: int32, how often the answer contains the token; 0 if only the prompt contains it.
    `presence`, `frequency`: [S] float32; 0: off.
    `repetition`: [S] float32, positive; 1: off.
    """

    starts: Ints
    tokens: Ints
    counts: Ints
    presence: Floats
    frequency: Floats
    repetition: Floats

    def row(self, index: int) -> SeenTokens:
        """Return the tokens and penalties of row `index` alone."""
        span, one = slice(*self.starts[index : index + 2].tolist()), slice(index, index + 1)
        penalties = self.presence[one], self.frequency[one], self.repetition[one]
        return SeenTokens(_alone(span), self.tokens[span], self.counts[span], *penalties)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Sampling parameters of S rows, one entry per row.

    `temperature`: 0: greedy, the lowest id among equal logits.
    `top_k`: 0: off.
    `top_p`: 1: off; 0: greedy.
    `min_p`: 0: off.
    `seed`: uint64.
    `position`: uint64, index of the sampled token in its sequence.
    `bias`: values to add to logits.
    `seen`: tokens with penalties for repetition.
    `dry`: values to subtract from logits: the penalty of each token that would extend a repetition.
    `masks`: [num_masks, ceil(V / 32)] uint32; bit i % 32 of word i / 32 is set if token i is
        allowed. Bits from V on are ignored.
    `mask_of`: [S] int32, index of the mask of each row; -1: none. None if and only if `masks` is
        None.
    """

    temperature: Floats
    top_k: Ints
    top_p: Floats
    min_p: Floats
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.uint64]
    bias: TokenValues | None = None
    seen: SeenTokens | None = None
    dry: TokenValues | None = None
    masks: npt.NDArray[np.uint32] | None = None
    mask_of: Ints | None = None

    @property
    def adjusts(self) -> bool:
        """Whether any row's logits are adjusted before sampling."""
        parts = (self.bias, self.seen, self.dry, self.masks)
        return any(part is not None for part in parts)

    def row(self, index: int) -> SamplingRows:
        """Return the parameters of row `index` alone."""
        one = slice(index, index + 1)
        return SamplingRows(
            self.temperature[one],
            self.top_k[one],
            self.top_p[one],
            self.min_p[one],
            self.seed[one],
            self.position[one],
            bias=self.bias and self.bias.row(index),
            seen=self.seen and self.seen.row(index),
            dry=self.dry and self.dry.row(index),
            masks=self.masks,
            mask_of=None if self.mask_of is None else self.mask_of[one],
        )


def _alone(span: slice) -> Ints:
    return np.array([0, span.stop - span.start], np.int32)


FAILED, NOTHING_ALLOWED = -1, -2
"""Results in place of a token. FAILED: the logits of the row contain NaN or +inf, or are all -inf.
NOTHING_ALLOWED: the grammar mask of the row allows no token."""


# adjust_logits(logits, rows) -> barren
#   logits: [S, V] float32, modified in place. Returns [S] int32: NOTHING_ALLOWED for a row whose
#   mask allows no token at all, else 0. Each row is changed in this order:
#     x += bias                                          for each token of `bias`
#     x -= presence + frequency * count                  for each token of `seen` with count > 0
#     x = x / repetition if x > 0 else x * repetition    for each token of `seen`
#     x -= dry                                           for each token of `dry`
#     x = -inf                                           for each token that the mask forbids
#   A finite logit stays finite until the mask: sums, products and quotients saturate at the largest
#   float32. NaN and infinity are unchanged, unless the mask forbids them.
#
# sample(logits, rows) -> tokens
#   Applies adjust_logits first, in place. Returns [S] int32: the token of each row; FAILED if the
#   adjusted row contains NaN or +inf, or only -inf; NOTHING_ALLOWED if its mask allows no token.
#   Candidates at temperature t: p = softmax(logits / t). top-k keeps the k highest logits; among
#   equal logits the lowest ids. top-p sorts by descending probability, then ascending id, and keeps
#   the shortest prefix (at least one token) whose mass of the top-k distribution reaches top_p.
#   min-p keeps p >= min_p * max(p). The token is the inverse CDF over the kept tokens, in ascending
#   order of ids, at the row's uniform number u: the first kept id whose cumulative mass exceeds
#   u * (kept mass). u = (w0 >> 8) * 2^-24, with w0 the first output word of Philox for the key
#   words (seed low, seed high) and the counter words (position low, position high, 0, 0).
#
# top_logprobs(logits, rows, tokens, count) -> (own [R], ids [R, count], logprobs [R, count])
#   Log-probabilities are the log_softmax, before temperature, of the rows `rows: [R] int32` of
#   adjusted logits. `own` float32 has the log-probabilities of `tokens: [R] int32`; `ids` int32 and
#   `logprobs` float32 describe the `count` best tokens, the lower id first among equals. A row that
#   cannot be sampled has NaN, and ids of -1.
