"""A small but real media processor, and a decoder that runs Pillow in a thread of the test.

An image becomes patches of 8 x 8 pixels: one row of tokens per row of patches, between a start and
an end token, with a line break after each row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt

from penstock.base.errors import InvalidRequest
from penstock.models.media.prepared import (
    DigestedMedia,
    Frames,
    MediaKind,
    Pixels,
    PreparedMedia,
    Sound,
)
from penstock.models.media.processor import Encode, Expansion, PlacedMedia
from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text import Tokenizer
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer

PATCH = 8
IMAGE, AUDIO, START, END = "<|image|>", "<|audio|>", "<|media_start|>", "<|media_end|>"
SAMPLES_PER_TOKEN = 100


@dataclass(frozen=True)
class SmallProcessor:
    """Implements `penstock.models.media.processor.MediaProcessor`. `rope_is_3d`: tokens of images
    have positions by row and column."""

    rope_is_3d: bool = False
    whole: bool = False
    margin: str = ""

    @property
    def placeholders(self) -> Mapping[MediaKind, str]:
        return {"image": IMAGE, "audio": AUDIO}

    @property
    def sampling_rate(self) -> int:
        return 1000

    def image(self, pixels: Pixels) -> PreparedMedia:
        rows, columns = (max(size // PATCH, 1) for size in pixels.shape[:2])
        fitted = np.zeros((rows * PATCH, columns * PATCH, 3), np.uint8)
        kept = pixels[: rows * PATCH, : columns * PATCH]
        fitted[: kept.shape[0], : kept.shape[1]] = kept
        cut = fitted.reshape(rows, PATCH, columns, PATCH, 3).swapaxes(1, 2)
        return PreparedMedia.of("image", cut.reshape(rows * columns, -1), (rows, columns))

    def video(self, frames: Frames) -> PreparedMedia:
        raise AssertionError("`placeholders` has no video")

    def audio(self, sound: Sound) -> PreparedMedia:
        return PreparedMedia.of("audio", sound.samples.reshape(-1, SAMPLES_PER_TOKEN))

    def frame_times(self, duration_s: float, num_frames: int) -> Sequence[float]:
        return (0.0,)

    def expand(self, media: PreparedMedia, encode: Encode) -> Expansion:
        if media.kind == "audio":
            return Expansion(tuple(encode(AUDIO)) * media.shape[0], ((0, media.shape[0]),))
        rows, columns = media.layout
        row = tuple(encode(IMAGE)) * columns + tuple(encode("\n"))
        before = tuple(encode(self.margin + START))
        ids = before + row * rows + tuple(encode(END + self.margin))
        runs = tuple((len(before) + index * len(row), columns) for index in range(rows))
        return Expansion(ids, runs, self.whole)

    def rope_positions(
        self, token_ids: Sequence[int], items: Sequence[PlacedMedia]
    ) -> npt.NDArray[np.int32] | None:
        if not self.rope_is_3d:
            return None
        positions = np.tile(np.arange(len(token_ids), dtype=np.int32), (3, 1))
        for item in items:
            for row, (first, count) in enumerate(item.expansion.runs):
                at = slice(item.start + first, item.start + first + count)
                positions[1, at] = row
                positions[2, at] = np.arange(count)
        return positions


class PillowDecoder:
    """Decodes images with Pillow, and raw float32 samples as audio. `prepared`: the places of all
    items that it has prepared."""

    def __init__(self, processor: SmallProcessor) -> None:
        self._processor = processor
        self.prepared: list[str] = []

    async def prepare(self, kind: MediaKind, data: bytes, where: str) -> DigestedMedia:
        self.prepared.append(where)
        if kind == "audio":
            sound = Sound(np.frombuffer(data, np.float32), 1000)
            return DigestedMedia.of(self._processor.audio(sound))
        return DigestedMedia.of(await asyncio.to_thread(self._image, data, where))

    def _image(self, data: bytes, where: str) -> PreparedMedia:
        from PIL import Image, UnidentifiedImageError

        try:
            pixels = np.asarray(Image.open(BytesIO(data)).convert("RGB"))
        except UnidentifiedImageError:
            raise InvalidRequest(
                f"`{where}` is not an image", field=where, code="invalid_image"
            ) from None
        return self._processor.image(pixels)


def png(width: int, height: int, colour: tuple[int, int, int] = (255, 0, 0)) -> bytes:
    """Return a PNG file of one colour."""
    from PIL import Image

    file = BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def sound(tokens: int) -> bytes:
    """Return the samples of a recording that becomes this number of tokens."""
    return np.zeros(tokens * SAMPLES_PER_TOKEN, np.float32).tobytes()


def media_tokenizer(*words: str) -> Tokenizer:
    """Return the tiny tokenizer with the control tokens of SmallProcessor, and with tokens for
    `words`."""
    plain = tiny_data()
    more = [IMAGE, AUDIO, START, END]
    types = [TokenType.CONTROL] * len(more) + [TokenType.USER_DEFINED] * len(words)
    return tiny_tokenizer(
        tokens=[*plain.tokens, *more, *words],
        token_types=[*plain.token_types, *map(int, types)],
    )
