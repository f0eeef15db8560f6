"""Turns the text of a transcript into the events of an answer."""

from __future__ import annotations

import time

from penstock.dialog import Event, RunEnded, TurnEnded, Usage
from penstock.generation.parts import Parts
from penstock.generation.stop_filter import StopFilter


class TranscriptAnswer:
    """The events of one answer. Create the object just before the first request to the engine,
    since its times start then.

    - `prompt_tokens`: tokens of the prompt, for the usage.
    - `stops`: stop strings.
    """

    def __init__(self, prompt_tokens: int, stops: tuple[str, ...]) -> None:
        self._prompt_tokens = prompt_tokens
        self._parts = Parts(0)
        self._shown = StopFilter(self._parts, stops, keeps_all=True)
        self._chars = 0
        self._begin_s = time.monotonic()
        self._first_s: float | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has ended the answer."""
        return self._shown.matched is not None

    def say(self, text: str) -> list[Event]:
        """Add text and return its events."""
        if self._first_s is None:
            self._first_s = time.monotonic()
        self._shown.say(text, self._chars)
        self._chars += len(text)
        return self._parts.take()

    def end(self, num_tokens: int, *, is_cut: bool) -> list[Event]:
        """Return the last events. `num_tokens`: tokens of the answer. `is_cut`: a limit of tokens
        ended it."""
        matched = self._shown.matched
        if matched is None:
            self._shown.flush(last=True)
            matched = self._shown.matched
        now_s = time.monotonic()
        first_s = now_s if self._first_s is None else self._first_s
        usage = Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=num_tokens,
            prompt_time_s=first_s - self._begin_s,
            completion_time_s=now_s - first_s,
        )
        is_incomplete = is_cut and matched is None
        self._parts.end_all(TurnEnded(0, "length" if is_incomplete else "stop", usage, matched))
        ended = RunEnded("incomplete" if is_incomplete else "completed", usage)
        return [*self._parts.take(), ended]
