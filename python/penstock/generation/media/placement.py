"""Replaces the placeholders of a prompt by the tokens of its media."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from penstock.dialog import Image, Message
from penstock.engine.types import MediaItem
from penstock.generation.media.loader import LoadedMedia, MediaPart
from penstock.models.media.prepared import DigestedMedia
from penstock.models.media.processor import (
    Expansion,
    MediaAmongOthers,
    MediaProcessor,
    PlacedMedia,
)
from penstock.text import Tokenizer
from penstock.text.chat_templates.media_slots import EncodedChat


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item and its place in a prompt."""

    item: DigestedMedia
    place: PlacedMedia

    def for_engine(self) -> MediaItem:
        """Return the item as the engine takes it."""
        expansion = self.place.expansion
        return MediaItem(
            self.item.digest,
            self.item.media,
            self.place.start,
            len(expansion.token_ids),
            expansion.runs,
            expansion.whole,
        )


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """The tokens of a prompt, and its media by ascending start."""

    token_ids: list[int]
    items: tuple[PlacedItem, ...] = ()


class MediaPlacement:
    """Places the media of one request in its prompt, which may be rendered several times.

    - `loaded`: the items of the request, None if it has none.
    - `processor`: the processor of the model; None only without items.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        processor: MediaProcessor | None = None,
        loaded: LoadedMedia | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._processor = processor
        self._loaded = loaded or {}
        self._expansions: dict[bytes, Expansion] = {}
        self._among: dict[tuple[bytes, int], DigestedMedia] = {}

    def place(self, chat: EncodedChat, messages: Sequence[Message]) -> PlacedPrompt:
        """Return the prompt of `messages`, which were rendered to `chat`."""
        if not chat.slots:
            return PlacedPrompt(chat.token_ids)
        parts = [p for m in messages for p in m.parts if isinstance(p, MediaPart)]
        prompt = _Prompt(self._tokenizer)
        images = sum(isinstance(parts[slot.number], Image) for slot in chat.slots)
        at = 0
        for slot in chat.slots:
            prompt.add(chat.token_ids[at : slot.start])
            item = self._shown(self._loaded[parts[slot.number]], images)
            prompt.add_item(item, self._expansion(item))
            at = slot.start + slot.length
        prompt.add(chat.token_ids[at:])
        return PlacedPrompt(prompt.ids, prompt.items())

    def rope_positions(self, prompt: PlacedPrompt) -> bytes:
        """Return the positions of a prompt's tokens (`TokenRequest.rope_positions`)."""
        if self._processor is None or not prompt.items:
            return b""
        places = [placed.place for placed in prompt.items]
        positions = self._processor.rope_positions(prompt.token_ids, places)
        if positions is None:
            return b""
        assert positions.shape == (3, len(prompt.token_ids))
        return np.ascontiguousarray(positions, np.int32).tobytes()

    def _shown(self, item: DigestedMedia, images: int) -> DigestedMedia:
        """Return an item as it is shown in a prompt with this number of images."""
        if not isinstance(self._processor, MediaAmongOthers):
            return item
        key = item.digest, images
        if key not in self._among:
            media = self._processor.among(item.media, images)
            known = item if media is item.media else DigestedMedia.of(media)
            self._among[key] = known
        return self._among[key]

    def _expansion(self, item: DigestedMedia) -> Expansion:
        found = self._expansions.get(item.digest)
        if found is None:
            assert self._processor is not None, "only a model with a processor has items"
            found = self._processor.expand(item.media, self._tokenizer.encode)
            self._expansions[item.digest] = found
        return found


@dataclass(slots=True)
class _Place:
    """The tokens `start` to `end` of a prompt, which are those of `expansion` from `skipped` on."""

    item: DigestedMedia
    expansion: Expansion
    skipped: int
    start: int
    end: int

    def placed(self) -> PlacedItem:
        size = self.end - self.start
        tokens = self.expansion.token_ids[self.skipped : self.skipped + size]
        runs = tuple((first - self.skipped, count) for first, count in self.expansion.runs)
        shown = Expansion(tokens, runs, self.expansion.whole)
        return PlacedItem(self.item, PlacedMedia(self.item.media, shown, self.start))


class _Prompt:
    """The tokens of a prompt, joined from texts and expansions.

    If whitespace meets at a join, it is encoded together, as in a prompt that was tokenized as a
    whole: Gemma has tokens for several line breaks. Such a token belongs to no item.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._places: list[_Place] = []
        self.ids: list[int] = []

    def add(self, token_ids: Sequence[int]) -> int:
        """Add tokens. Returns the number of tokens at their start that were joined to the prompt's
        last tokens."""
        before = self._spaces(reversed(self.ids))[::-1]
        after = self._spaces(token_ids)
        joined = 0
        if before and after:
            both = b"".join(map(self._tokenizer.token_bytes, before + after)).decode()
            together = self._tokenizer.encode_inside(both)
            if together != before + after:
                joined = len(after)
                del self.ids[len(self.ids) - len(before) :]
                if self._places:
                    self._places[-1].end = min(self._places[-1].end, len(self.ids))
                self.ids += together
        self.ids += token_ids[joined:]
        return joined

    def add_item(self, item: DigestedMedia, expansion: Expansion) -> None:
        """Add the tokens of an item."""
        skipped = self.add(expansion.token_ids)
        size = len(expansion.token_ids) - skipped
        start = len(self.ids) - size
        self._places.append(_Place(item, expansion, skipped, start, len(self.ids)))

    def items(self) -> tuple[PlacedItem, ...]:
        return tuple(place.placed() for place in self._places)

    def _spaces(self, token_ids: Iterable[int]) -> list[int]:
        """Return the tokens at the start that are whitespace."""
        return list(takewhile(self._is_space, token_ids))

    def _is_space(self, token_id: int) -> bool:
        return (
            token_id not in self._tokenizer.control_ids
            and self._tokenizer.token_bytes(token_id).isspace()
        )
