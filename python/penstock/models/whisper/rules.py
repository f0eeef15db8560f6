"""Restricts the tokens that Whisper samples: suppressed tokens, and timestamps in pairs and in
order, by the rules of OpenAI's reference implementation."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.models.whisper.spec import TIMESTAMP_S, WhisperTokens

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]

FORBIDDEN: Final = -1e30
"""The logit of a token that must not be sampled. It is finite, because infinite logits fail."""
_LATEST_START: Final = round(1.0 / TIMESTAMP_S)  # the first segment starts within a second


class TranscriptRules:
    """The rules for the tokens of one model."""

    def __init__(self, tokens: WhisperTokens) -> None:
        self._tokens = tokens
        self._suppressed = np.array([*tokens.suppressed, tokens.no_timestamps], np.intp)
        self._suppressed_first = np.array(tokens.suppressed_first, np.intp)

    def transcript_start(self, prompt: Ints) -> int | None:
        """Return the index of the first token of the transcript, in or just after `prompt`. None if
        the opening tokens are not complete: no rules apply to such a prompt, which asks for the
        language."""
        starts = np.flatnonzero(prompt == self._tokens.start)
        if not len(starts):
            return None
        index = int(starts[-1]) + (3 if self._tokens.languages else 1)
        if index < len(prompt) and prompt[index] == self._tokens.no_timestamps:
            index += 1
        return index if index <= len(prompt) else None

    def apply(self, logits: Floats, tokens: Ints, start: int) -> None:
        """Forbid tokens in place. `logits: [V]`: for the token after `tokens`. `start`: see
        `transcript_start`."""
        logits[self._suppressed] = FORBIDDEN
        said = tokens[start:]
        if not len(said):
            logits[self._suppressed_first] = FORBIDDEN
        if tokens[start - 1] != self._tokens.no_timestamps:
            self._timestamps(logits, said)

    def _timestamps(self, logits: Floats, said: Ints) -> None:
        first, end = self._tokens.first_timestamp, self._tokens.end
        if not len(said):
            logits[:first] = FORBIDDEN
            logits[first + _LATEST_START + 1 :] = FORBIDDEN
            return
        last = said[-1] >= first
        before_last = len(said) < 2 or said[-2] >= first
        if last and before_last:
            logits[first:] = FORBIDDEN
        elif last:
            logits[:end] = FORBIDDEN
        stamps = said[said >= first]
        if len(stamps):
            # A segment must not end where it starts, but the next one may start there.
            least = int(stamps[-1]) + (0 if last and not before_last else 1)
            logits[first:least] = FORBIDDEN
        self._prefer_timestamp(logits)

    def _prefer_timestamp(self, logits: Floats) -> None:
        """Forbid text if all timestamps together are likelier than each token of text."""
        first = self._tokens.first_timestamp
        stamps = logits[first:]
        top = float(stamps.max(initial=FORBIDDEN))
        if top <= FORBIDDEN:
            return
        together = top + float(np.log(np.exp(stamps - top).sum()))
        if together > float(logits[:first].max()):
            logits[:first] = FORBIDDEN
