"""The requests of an embedding engine, and their sequences that have not been computed yet."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.engine.media.encode_queue import EncodeQueue
from penstock.engine.media.prompt_media import PromptMedia
from penstock.engine.types import EmbedRequest, EngineInfo, MediaItem
from penstock.models.media.prepared import MediaKind
from penstock.runtime.cpu.embedding_inputs import SequenceMedia
from penstock.scheduler import NO_ADAPTER

Tokens: TypeAlias = tuple[int, ...]

NO_MEDIA: Final = SequenceMedia()
NO_TOKENS: Final = "this model embeds images and no text; give one image per input"
LONE_TEXT: Final = "this model embeds a text or an image per input, not both together"


@dataclass(frozen=True, slots=True)
class EmbeddingSequence:
    """A sequence to embed.

    `second_start`: the start of its second text, its length if it has none.
    `items`, `media`: its media, and their place as the runtime needs it.
    """

    tokens: Tokens
    second_start: int
    items: tuple[MediaItem, ...] = ()
    media: SequenceMedia = NO_MEDIA


@dataclass(slots=True)
class EmbeddingJob:
    """A request and its sequences that have not been computed yet.

    `adapter`: the leased adapter revision, "" for none.
    `slot`: the adapter's slot, NO_ADAPTER until the adapter is in memory.
    `encoded`: the media of the first waiting sequence are encoded.
    """

    id: str
    waiting: deque[EmbeddingSequence] = field(default_factory=deque)
    adapter: str = ""
    slot: int = NO_ADAPTER
    encoded: bool = True


def sequences_of(
    request: EmbedRequest,
    info: EngineInfo,
    media: EncodeQueue | None,
    lone_kinds: frozenset[MediaKind] = frozenset(),
) -> list[EmbeddingSequence]:
    """Check the sequences of a request and return them.

    `media`: encodes the media; None for a model that reads only text.
    `lone_kinds`: see EmbeddingInfo.

    Raises InvalidRequest or ContextLengthExceeded.
    """
    if not request.sequences:
        raise InvalidRequest("input must not be empty", field="input")
    count = len(request.sequences)
    starts = request.second_starts or map(len, request.sequences)
    items = request.media or [()] * count
    positions = request.rope_positions or [b""] * count
    sequences = []
    for tokens, own, place, start in zip(request.sequences, items, positions, starts, strict=True):
        if lone_kinds:
            _check_lone(tokens, own, info)
        else:
            _check_tokens(tokens, info)
        prompt = PromptMedia(max(len(tokens), 1), own, place, "input")
        prompt.check(info.media_kinds)
        prompt.answer_room(0, info.max_model_len)
        if media is not None:
            media.check(own)
        sequences.append(EmbeddingSequence(tokens, start, own, SequenceMedia(prompt.runs(), place)))
    return sequences


def _check_lone(tokens: Tokens, items: tuple[MediaItem, ...], info: EngineInfo) -> None:
    """Check a sequence of a model that embeds an item by itself."""
    if not info.vocab_size and (tokens or len(items) != 1):
        raise InvalidRequest(NO_TOKENS, field="input")
    if len(items) != (not tokens):
        raise InvalidRequest(LONE_TEXT, field="input")
    if tokens:
        _check_tokens(tokens, info)


def _check_tokens(tokens: Tokens, info: EngineInfo) -> None:
    if not tokens:
        raise InvalidRequest("an input has no tokens", field="input")
    if len(tokens) > info.max_model_len:
        raise ContextLengthExceeded(
            f"an input has {len(tokens)} tokens; the model takes {info.max_model_len}",
            field="input",
        )
    if min(tokens) < 0 or max(tokens) >= info.vocab_size:
        raise InvalidRequest(
            f"token ids must be at least 0 and below {info.vocab_size}", field="input"
        )
