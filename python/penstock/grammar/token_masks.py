"""Fills the token masks of a step on threads while the forward pass runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import Unavailable
from penstock.grammar.guides import GrammarGuide, LazyGrammarGuide
from penstock.scheduler import Guide

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

Words = npt.NDArray[np.uint32]
Index = npt.NDArray[np.int32]
_FREE: Final = 0xFFFFFFFF


class TokenMaskFiller:
    """Fills token masks on threads, one step at a time.

    - `vocab_size`: bits of a mask.
    - `threads`: number of threads.
    - `words`: 32-bit words of a mask.
    - `fill_s`, `wait_s`: total seconds spent on filling masks, and on waiting for them.
    """

    def __init__(self, vocab_size: int, threads: int) -> None:
        self.words = -(-vocab_size // 32)
        self._threads = threads
        self._starter: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None
        self._masks: Words = np.empty((0, self.words), np.uint32)
        self.fill_s = 0.0
        self.wait_s = 0.0

    def start(self) -> None:
        """Start the threads, if not started. Must be called before `begin` gets a guide with a
        grammar.

        Raises Unavailable if the machine has no thread left; the caller must fail only one request.
        """
        if self._executor is not None:
            return
        from llguidance import LLExecutor

        starter = ThreadPoolExecutor(1, thread_name_prefix="penstock-masks")
        try:
            starter.submit(int)  # the pool starts its thread now
            self._executor = LLExecutor(self._threads)
        except (RuntimeError, ValueError) as error:  # LLExecutor raises ValueError
            starter.shutdown(wait=False)
            raise Unavailable("no thread is free to fill token masks", retry_after_s=1) from error
        self._starter = starter

    def begin(self, sampled: Sequence[tuple[Guide | None, Sequence[int]]]) -> StepTokenMasks | None:
        """Start to fill the token masks of a step.

        `sampled`: (guide, draft tokens) of each sampled row. A row whose guide applies a grammar
        gets one mask for its next token and one mask after each draft token. Returns None if no
        grammar applies. The guides must not be used until `StepTokenMasks.wait` returns.
        """
        matchers: list[tuple[LLMatcher, int, list[int]]] = []
        calls: list[tuple[LazyGrammarGuide, range]] = []
        mask_of: list[int] = []
        count = 0
        for guide, draft in sampled:
            places = 1 + len(draft)
            bound = _bound(guide)
            if bound is not None:
                matchers.append((bound.matcher, count, list(draft)))
                if isinstance(guide, LazyGrammarGuide):
                    calls.append((guide, range(count, count + places)))
                mask_of += range(count, count + places)
                count += places
            else:
                mask_of += [-1] * places
        if not count:
            return None
        if len(self._masks) < count:
            self._masks = np.empty((count, self.words), np.uint32)
        masks = self._masks[:count]
        assert self._starter is not None, "not started"
        filling = self._starter.submit(self._fill, matchers, calls, masks)
        return StepTokenMasks(self, filling, masks, np.array(mask_of, np.int32))

    def later(self) -> LaterTokenMasks:
        """Return the token masks of a step whose guides are not up to date yet."""
        return LaterTokenMasks(self)

    def close(self) -> None:
        if self._starter is not None:
            self._starter.shutdown(wait=True)

    def _fill(
        self,
        matchers: list[tuple[LLMatcher, int, list[int]]],
        calls: list[tuple[LazyGrammarGuide, range]],
        masks: Words,
    ) -> None:
        from llguidance.numpy import (
            fill_next_token_bitmask_par,
            fill_next_token_bitmask_par_with_draft_tokens,
        )

        assert self._executor is not None
        start_s = time.monotonic()
        words = masks.view(np.int32)
        plain = [(matcher, index) for matcher, index, draft in matchers if not draft]
        drafted = [entry for entry in matchers if entry[2]]
        if plain:
            fill_next_token_bitmask_par(self._executor, plain, words)
        if drafted:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, words)
        for guide, places in calls:
            _relax(guide, masks[places.start : places.stop])
        self.fill_s += time.monotonic() - start_s


class StepTokenMasks:
    """The token masks of one step, being filled. Implements `runtime.protocol.Masks`."""

    def __init__(
        self, filler: TokenMaskFiller, filling: Future[None], masks: Words, mask_of: Index
    ) -> None:
        self._filler = filler
        self._filling = filling
        self._masks = masks
        self._mask_of = mask_of

    def wait(self) -> tuple[Words, Index]:
        """Wait until all masks are filled.

        Returns the masks [number of masks, ceil(V / 32)] and, for each sampled position, the index
        of its mask [S], -1 for no mask.
        """
        start_s = time.monotonic()
        self._filling.result()
        self._filler.wait_s += time.monotonic() - start_s
        return self._masks, self._mask_of


class LaterTokenMasks:
    """The token masks of a step that is submitted before the step before it is committed.
    Implements `runtime.protocol.Masks`; `begin` must be called before `wait`."""

    def __init__(self, filler: TokenMaskFiller) -> None:
        self._filler = filler
        self._count = -1
        self._masks: StepTokenMasks | None = None

    def begin(self, sampled: Sequence[tuple[Guide | None, Sequence[int]]]) -> None:
        """Start to fill the masks; see `TokenMaskFiller.begin`."""
        self._count = sum(1 + len(draft) for _, draft in sampled)
        self._masks = self._filler.begin(sampled)

    def wait(self) -> tuple[Words, Index]:
        """Wait until all masks are filled. If no grammar applies any more, all tokens are
        allowed."""
        assert self._count >= 0, "the masks were not begun"
        if self._masks is None:
            return np.full((1, self._filler.words), _FREE, np.uint32), np.full(
                self._count, -1, np.int32
            )
        return self._masks.wait()


def _bound(guide: Guide | None) -> GrammarGuide | None:
    """Return the guide whose grammar applies to the next token of a sequence, or None."""
    match guide:
        case GrammarGuide():
            return guide
        case LazyGrammarGuide():
            return guide.bound
        case _:
            return None


def _relax(guide: LazyGrammarGuide, masks: Words) -> None:
    """Allow every token in the masks of a lazy guide whose grammar has ended."""
    if guide.bound is not None and guide.bound.matcher.is_stopped():
        masks.fill(_FREE)
