"""Splits the tokens of a window into segments, and decides where the next window starts."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.models.whisper.spec import TIMESTAMP_S, WhisperTokens
from penstock.text import Tokenizer

FRAMES_PER_TIMESTAMP: Final = 2
FRAMES_PER_S: Final = 100
MIN_LOGPROB: Final = -1.0
"""The mean log-probability below which a window is decoded again, or is silence."""
MAX_COMPRESSION: Final = 2.4
"""The compression ratio of text above which it repeats itself, and is decoded again."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a window. `tokens`: including timestamps. `start_s`, `end_s`: from the start of the
    window."""

    tokens: tuple[int, ...]
    start_s: float
    end_s: float


class WindowTokens:
    """The tokens of one window as they are decoded, `ids`. A segment of speech starts and ends with
    a timestamp; the last one may lack its end."""

    def __init__(self, tokens: WhisperTokens, tokenizer: Tokenizer) -> None:
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._logprobs: list[float] = []
        self._num_taken = 0  # tokens in segments that were taken
        self.ids: list[int] = []

    def push(self, token_id: int, logprob: float) -> None:
        self.ids.append(token_id)
        self._logprobs.append(logprob)

    def drop_rest(self) -> None:
        """Forget the tokens after the segments that were taken, to decode them again."""
        del self.ids[self._num_taken :], self._logprobs[self._num_taken :]

    @property
    def mean_logprob(self) -> float:
        """The mean log-probability of the tokens, including the end token, which counts as 0."""
        return sum(self._logprobs) / (len(self._logprobs) + 1)

    @property
    def is_likely(self) -> bool:
        """Whether the tokens are likely enough, and do not repeat themselves."""
        return self.mean_logprob >= MIN_LOGPROB and self._compression() <= MAX_COMPRESSION

    @property
    def ends_segment(self) -> bool:
        """Whether the last token ends a segment."""
        first = self._tokens.first_timestamp
        return len(self.ids) > 2 and self.ids[-1] >= first > self.ids[-2]

    def text_ids(self, token_ids: Iterable[int]) -> list[int]:
        """Return the tokens of text."""
        return [one for one in token_ids if one < self._tokens.end]

    def take_complete(self) -> list[Segment]:
        """Return the complete segments that were not taken before. They stay, whatever tokens
        follow."""
        first, taken = self._tokens.first_timestamp, []
        for index in range(self._num_taken + 1, len(self.ids)):
            if self.ids[index] >= first > self.ids[index - 1] and index > self._num_taken:
                taken.append(self._segment(self._num_taken, index + 1))
                self._num_taken = index + 1
        return taken

    def take_rest(self, duration_s: float) -> Segment | None:
        """Return the tokens after the complete segments, None if there are none. `duration_s`: the
        end of the segment if it has no timestamp for it."""
        if self._num_taken == len(self.ids):
            return None
        rest = self._segment(self._num_taken, len(self.ids))
        self._num_taken = len(self.ids)
        return Segment(rest.tokens, rest.start_s, max(rest.end_s, duration_s))

    @property
    def is_unfinished(self) -> bool:
        """Whether speech starts after the last of several segments and does not end: the next
        window starts with it."""
        return 0 < self._num_taken < len(self.ids)

    def advance(self, frames: int) -> int:
        """Return the number of frames to the start of the next window, after `take_complete`.
        `frames`: the frames of this window that are not padding."""
        if not self.is_unfinished:
            return frames
        last = self.ids[self._num_taken - 1] - self._tokens.first_timestamp
        return max(1, min(frames, last * FRAMES_PER_TIMESTAMP))

    def _segment(self, begin: int, end: int) -> Segment:
        ids = self.ids[begin:end]
        first = self._tokens.first_timestamp
        times = [(one - first) * TIMESTAMP_S for one in (ids[0], ids[-1]) if one >= first]
        return Segment(tuple(ids), times[0] if times else 0.0, times[-1] if times else 0.0)

    def _compression(self) -> float:
        data = self._tokenizer.decode(self.text_ids(self.ids)).encode()
        return len(data) / len(zlib.compress(data))
