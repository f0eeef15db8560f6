"""Decoded and prepared media.

A decoding process turns the bytes of a client into `Pixels`, `Frames` or `Sound`, and the processor
of a model family turns these into `PreparedMedia`, which the towers of the engine encode.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

MediaKind: TypeAlias = Literal["image", "audio", "video"]
MEDIA_KINDS: Final[tuple[MediaKind, ...]] = ("image", "audio", "video")
Pixels: TypeAlias = npt.NDArray[np.uint8]
"""An image: [height, width, 3] RGB, with its EXIF orientation applied and transparency removed."""

_DTYPES: Final[dict[str, np.dtype[Any]]] = {"u8": np.dtype(np.uint8), "f32": np.dtype("<f4")}


@dataclass(frozen=True, slots=True)
class Frames:
    """The sampled frames of a video or of an animated image.

    - `pixels`: [N, height, width, 3] RGB.
    - `timestamps`: seconds from the start of the video, one per frame.
    - `duration_s`: seconds of the whole video.
    """

    pixels: npt.NDArray[np.uint8]
    timestamps: tuple[float, ...]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Sound:
    """A recording: `samples` [N] float32, mono, -1 to 1, at `rate` samples per second."""

    samples: npt.NDArray[np.float32]
    rate: int


class PreparedMedia(msgspec.Struct, frozen=True):
    """An image, video or recording in the form that the tower of a model family encodes.

    - `data`: the elements in C order: uint8 pixels that the tower normalizes, or float32 features.
    - `dtype`, `shape`: the type of the elements and the shape. The family defines the dimensions.
    - `layout`: integers that the family defines: for example rows and columns of tiles.
    - `timestamps`: seconds of the frames of a video.
    """

    kind: MediaKind
    data: bytes
    dtype: Literal["u8", "f32"]
    shape: tuple[int, ...]
    layout: tuple[int, ...] = ()
    timestamps: tuple[float, ...] = ()

    @classmethod
    def of(
        cls,
        kind: MediaKind,
        array: npt.NDArray[Any],
        layout: tuple[int, ...] = (),
        timestamps: tuple[float, ...] = (),
    ) -> PreparedMedia:
        """Return the media with the elements of `array`, which is uint8 or float32."""
        dtype: Literal["u8", "f32"] = "u8" if array.dtype == np.uint8 else "f32"
        data = np.ascontiguousarray(array, _DTYPES[dtype]).tobytes()
        return cls(kind, data, dtype, array.shape, layout, timestamps)

    def array(self) -> npt.NDArray[Any]:
        """Return the elements as a read-only array of `shape`."""
        flat: npt.NDArray[Any] = np.frombuffer(self.data, _DTYPES[self.dtype])
        return flat.reshape(self.shape)

    def digest(self) -> bytes:
        """Return 16 bytes that identify the content. It reads all of `data`: keep the result."""
        facts = msgspec.json.encode((self.kind, self.dtype, self.shape, self.layout))
        hashed = blake2b(facts, digest_size=16)
        hashed.update(self.data)
        return hashed.digest()


@dataclass(frozen=True, slots=True)
class DigestedMedia:
    """Prepared media with their digest, which identifies them in the prefix and encoder caches."""

    media: PreparedMedia
    digest: bytes

    @classmethod
    def of(cls, media: PreparedMedia) -> DigestedMedia:
        """Return the media with the digest of all their bytes."""
        return cls(media, media.digest())
