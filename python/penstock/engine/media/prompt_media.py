"""The place of media in a prompt: checks it, and describes it for the scheduler and the runtime."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.engine.types import EngineInfo, MediaItem, TokenRequest
from penstock.models.media.prepared import MEDIA_KINDS, MediaKind
from penstock.runtime.media import RuntimeMedia
from penstock.scheduler import MediaRun, MediaSpan

AXES: Final = 3
_DIGEST_BYTES: Final = 16


def kinds_of(media: RuntimeMedia | None) -> tuple[MediaKind, ...]:
    """Return the kinds of media that a runtime encodes; none if it has no towers."""
    return () if media is None else tuple(kind for kind in MEDIA_KINDS if kind in media.kinds)


def check_media(request: TokenRequest, info: EngineInfo) -> None:
    """Raise InvalidRequest if the model does not read a kind of media in a request, or a place of
    an item or a position is impossible."""
    end = 0
    for index, item in enumerate(request.media):
        where, kind = f"media[{index}]", item.media.kind
        if kind not in info.media_kinds:
            known = ", ".join(info.media_kinds) or "only text"
            raise InvalidRequest(
                f"{where} is of kind {kind}; this model reads {known}", field="prompt"
            )
        if item.start < end or item.length < 1:
            raise InvalidRequest(
                f"{where} starts at token {item.start} and has {item.length} tokens; it must start"
                f" at token {end} or later and have one token or more",
                field="prompt",
            )
        end = item.start + item.length
        _check_runs(where, item)
    prompt_tokens = len(request.token_ids)
    if end > prompt_tokens:
        raise InvalidRequest(
            f"the media end at token {end}, after the {prompt_tokens} tokens of the prompt",
            field="prompt",
        )
    if request.rope_positions:
        _check_positions(request)


def answer_room(request: TokenRequest, max_model_len: int) -> int:
    """Return the largest number of answer tokens whose positions are in the context. Raises
    ContextLengthExceeded if the prompt's positions leave none of those asked for."""
    if not request.rope_positions:
        return request.max_tokens
    positions = int(_positions(request).max()) + 1
    if positions > max_model_len - min(request.max_tokens, 1):
        raise ContextLengthExceeded(
            f"the prompt's media have positions up to {positions - 1}; the context has "
            f"{max_model_len} positions for prompt and answer"
        )
    return min(request.max_tokens, max_model_len - positions)


def spans_of(request: TokenRequest) -> tuple[MediaSpan, ...]:
    """Return the spans of the media of a request. The digest of a span covers all that determines
    the keys and values of its tokens, with the tokens before it: the item, the tokens that take its
    rows, and their positions."""
    return tuple(
        MediaSpan(item.start, item.length, _span_digest(request, item), item.whole)
        for item in request.media
    )


def runs_of(request: TokenRequest) -> tuple[MediaRun, ...]:
    """Return the tokens whose embeddings are rows of encoded items, with these rows."""
    runs = []
    for item in request.media:
        row = 0
        for first, count in item.runs:
            runs.append(MediaRun(item.start + first, count, item.digest, row, item.whole))
            row += count
    return tuple(runs)


def _span_digest(request: TokenRequest, item: MediaItem) -> bytes:
    hashed = blake2b(item.digest, digest_size=_DIGEST_BYTES)
    hashed.update(np.array(item.runs, np.int64).tobytes())
    if request.rope_positions:
        end = item.start + item.length
        hashed.update(_positions(request)[:, item.start : end].tobytes())
    return hashed.digest()


def _check_runs(where: str, item: MediaItem) -> None:
    end = 0
    for first, count in item.runs:
        if first < end or count < 1:
            raise InvalidRequest(
                f"{where}.runs must be ascending and not empty; one has {count} tokens from {first}"
                f" on, after {end}",
                field="prompt",
            )
        end = first + count
    if not item.runs or end > item.length:
        raise InvalidRequest(
            f"{where}.runs end at token {end}; they must end after 0 and at {item.length} or"
            " before",
            field="prompt",
        )


def _check_positions(request: TokenRequest) -> None:
    prompt_tokens, size = len(request.token_ids), len(request.rope_positions)
    expected = 4 * AXES * prompt_tokens
    if size != expected:
        raise InvalidRequest(
            f"rope_positions has {size} bytes; {prompt_tokens} tokens need {expected}",
            field="prompt",
        )
    positions = _positions(request)
    if positions.min() < 0:
        raise InvalidRequest(
            f"rope_positions has {positions.min()}; positions must be 0 or more", field="prompt"
        )


def _positions(request: TokenRequest) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.frombuffer(request.rope_positions, np.int32).reshape(AXES, -1)
