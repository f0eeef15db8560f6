"""The place of media in a prompt: checks it, and describes it for the scheduler and the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.engine.types import MediaItem
from penstock.models.media.prepared import MEDIA_KINDS, MediaKind
from penstock.runtime.media import RuntimeMedia
from penstock.scheduler import MediaRun, MediaSpan

AXES: Final = 3
_DIGEST_BYTES: Final = 16


def kinds_of(media: RuntimeMedia | None) -> tuple[MediaKind, ...]:
    """Return the kinds of media that a runtime encodes; none if it has no towers."""
    return () if media is None else tuple(kind for kind in MEDIA_KINDS if kind in media.kinds)


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """The media of a prompt.

    - `num_tokens`: tokens of the prompt.
    - `items`, `rope_positions`: see `TokenRequest`.
    - `field`: the field of the request that errors name.
    """

    num_tokens: int
    items: tuple[MediaItem, ...]
    rope_positions: bytes = b""
    field: str = "prompt"

    def check(self, kinds: tuple[MediaKind, ...]) -> None:
        """Raise InvalidRequest if an item is of none of the `kinds` that the model reads, or a
        place of an item or a position is impossible."""
        end = 0
        for index, item in enumerate(self.items):
            where, kind = f"media[{index}]", item.media.kind
            if kind not in kinds:
                known = ", ".join(kinds) or "only text"
                raise self._invalid(f"{where} is of kind {kind}; this model reads {known}")
            if item.start < end or item.length < 1:
                raise self._invalid(
                    f"{where} starts at token {item.start} and has {item.length} tokens; it must"
                    f" start at token {end} or later and have one token or more"
                )
            end = item.start + item.length
            self._check_runs(where, item)
        if end > self.num_tokens:
            raise self._invalid(
                f"the media end at token {end}, after the {self.num_tokens} tokens of the prompt"
            )
        self._check_positions()

    def answer_room(self, max_tokens: int, max_model_len: int) -> int:
        """Return how many of `max_tokens` answer tokens have positions in the context. Raises
        ContextLengthExceeded if the positions of the prompt leave none."""
        if not self.rope_positions:
            return max_tokens
        positions = int(self._positions().max()) + 1
        if positions > max_model_len - min(max_tokens, 1):
            raise ContextLengthExceeded(
                f"the prompt's media have positions up to {positions - 1}; the context has "
                f"{max_model_len} positions for prompt and answer",
                field=self.field,
            )
        return min(max_tokens, max_model_len - positions)

    def spans(self) -> tuple[MediaSpan, ...]:
        """Return the spans of the items: one for each run of a `whole` item, whose tokens attend to
        each other, and one for any other item. The digest of a span covers all that determines the
        keys and values of its tokens, beside the tokens before it: the item, the tokens that take
        its rows, and their positions."""
        return tuple(
            MediaSpan(item.start + first, count, self._span_digest(item), item.whole)
            for item in self.items
            for first, count in (item.runs if item.whole else ((0, item.length),))
        )

    def runs(self) -> tuple[MediaRun, ...]:
        """Return the tokens whose embeddings are rows of encoded items, with these rows."""
        runs = []
        for item in self.items:
            row = 0
            for first, count in item.runs:
                runs.append(MediaRun(item.start + first, count, item.digest, row, item.whole))
                row += count
        return tuple(runs)

    def _span_digest(self, item: MediaItem) -> bytes:
        hashed = blake2b(item.digest, digest_size=_DIGEST_BYTES)
        hashed.update(np.array(item.runs, np.int64).tobytes())
        if self.rope_positions:
            end = item.start + item.length
            hashed.update(self._positions()[:, item.start : end].tobytes())
        return hashed.digest()

    def _check_runs(self, where: str, item: MediaItem) -> None:
        end = 0
        for first, count in item.runs:
            if first < end or count < 1:
                raise self._invalid(
                    f"{where}.runs must be ascending and not empty; one has {count} tokens from"
                    f" {first} on, after {end}"
                )
            end = first + count
        if not item.runs or end > item.length:
            raise self._invalid(
                f"{where}.runs end at token {end}; they must end after 0 and at {item.length} or"
                " before"
            )

    def _check_positions(self) -> None:
        if not self.rope_positions:
            return
        size, expected = len(self.rope_positions), 4 * AXES * self.num_tokens
        if size != expected:
            raise self._invalid(
                f"rope_positions has {size} bytes; {self.num_tokens} tokens need {expected}"
            )
        least = int(self._positions().min())
        if least < 0:
            raise self._invalid(f"rope_positions has {least}; positions must be 0 or more")

    def _positions(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        return np.frombuffer(self.rope_positions, np.int32).reshape(AXES, -1)

    def _invalid(self, message: str) -> InvalidRequest:
        return InvalidRequest(message, field=self.field)
