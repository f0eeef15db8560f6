"""Transcribes one recording, window by window."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.generation.transcription.instructions import Instructions
from penstock.generation.transcription.segments import FRAMES_PER_S, Segment
from penstock.generation.transcription.window_decoder import Decoded, Window, WindowDecoder
from penstock.models.whisper.processor import WhisperProcessor
from penstock.models.whisper.spec import WhisperSpec
from penstock.text import Tokenizer

Floats = npt.NDArray[np.float32]

UNSURE_TEMPERATURE: Final = 0.5
"""The text of a window that needed a higher temperature is not the prompt of the next window."""


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A segment of a recording. `text_ids`: its tokens without timestamps. `start_s`, `end_s`: from
    the start of the recording."""

    text_ids: tuple[int, ...]
    start_s: float
    end_s: float


class RecordingTranscript:
    """The transcript of one recording as it grows.

    - `features`: log-mel features [mels, frames] of the recording.
    - `initial`: tokens of text that precedes it.
    - `is_cut`: the transcript ended at the limit of tokens.
    """

    def __init__(
        self,
        spec: WhisperSpec,
        tokenizer: Tokenizer,
        decoder: WindowDecoder,
        instructions: Instructions,
        features: Floats,
        initial: list[int],
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._processor = WhisperProcessor(spec.encoder.mels, spec.encoder.frames)
        self._task = instructions.task
        self._language = instructions.language
        self._features = features
        self._said = initial
        self._seek = 0
        self._finished_tokens = 0  # of the windows before the current one
        self._current = Decoded()
        self.is_cut = False

    @property
    def num_tokens(self) -> int:
        """The decoded tokens."""
        return self._finished_tokens + self._current.num_tokens

    async def segments(self, limit: int | None) -> AsyncGenerator[SpokenSegment, None]:
        """Yield the segments that have text, as soon as each is final. `limit`: most tokens, None
        for no limit. Raises ServiceError."""
        while self._seek < self._features.shape[1] and not self.is_cut:
            window = await self._next_window()
            left = self._spec.max_tokens if limit is None else limit - self.num_tokens
            result, kept = Decoded(), list[int]()
            self._current = result
            async with aclosing(self._decoder.segments(window, left, result)) as segments:
                async for segment in segments:
                    if segment.end_s > segment.start_s and self._has_text(segment):
                        kept += segment.tokens
                        yield self._spoken(segment)
            self._finished_tokens, self._current = self.num_tokens, Decoded()
            self.is_cut = result.cut
            is_sure = result.temperature <= UNSURE_TEMPERATURE
            self._said = self._said + kept if is_sure else []
            self._seek += result.advance

    async def _next_window(self) -> Window:
        """Return the window at the current position, whose language is detected if it is not
        known."""
        tokens = self._spec.tokens
        media = self._processor.window(self._features, self._seek)
        frames = min(self._processor.frames, self._features.shape[1] - self._seek)
        window = Window(media, media.digest(), frames, (tokens.start,))
        if self._language is None and tokens.languages:
            self._language = await self._decoder.language(window)
        task = tokens.translate if self._task == "translate" else tokens.transcribe
        opening = tokens.opening(self._language, task)
        most = self._spec.max_tokens // 2 - 1
        before = (tokens.previous, *self._said[-most:]) if self._said else ()
        return Window(media, window.digest, frames, (*before, *opening))

    def _spoken(self, segment: Segment) -> SpokenSegment:
        begin_s = self._seek / FRAMES_PER_S
        return SpokenSegment(
            self._text_ids(segment), begin_s + segment.start_s, begin_s + segment.end_s
        )

    def _has_text(self, segment: Segment) -> bool:
        return bool(self._tokenizer.decode(self._text_ids(segment)).strip())

    def _text_ids(self, segment: Segment) -> tuple[int, ...]:
        end = self._spec.tokens.end
        return tuple(one for one in segment.tokens if one < end)
