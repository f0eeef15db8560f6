"""Image generation: `POST /v1/images/generations`."""

from __future__ import annotations

import binascii
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

import msgspec
import orjson

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.schema import images as i
from penstock.dialog import TextToImageRequest

ImageFormat: TypeAlias = Literal["file", "data_url", "base64"]

FORMATS: Final[dict[str | None, ImageFormat]] = {
    None: "file",
    "Url": "file",
    "url": "file",
    "B64Json": "data_url",
    "b64_json": "base64",
}
DATA_URL: Final = "data:image/png;base64,"


class DecodedImages(msgspec.Struct, frozen=True):
    """A decoded body. `format`: the format of the images in the answer."""

    request: TextToImageRequest
    format: ImageFormat
    stream: ClassVar[bool] = False


def decode(body: bytes) -> DecodedImages:
    """Decode an image request. Raises InvalidRequest, which names the wrong field."""
    asked = decode_body(body, i.ImageGenerationRequest)
    request = TextToImageRequest(
        prompt=asked.prompt,
        model=asked.model or None,
        n=asked.n or 1,
        height=asked.height,
        width=asked.width,
        seed=_seed(asked.seed),
        negative_prompt=asked.negative_prompt or "",
    )
    return DecodedImages(request, FORMATS[asked.response_format])


def encode_files(names: Sequence[str]) -> bytes:
    """Return the JSON of an answer with stored files."""
    return _encode([{"url": name, "b64_json": None} for name in names])


def encode_inline(images: Sequence[bytes], prefix: str) -> bytes:
    """Return the JSON of an answer that contains the PNG files. `prefix`: precedes the base64."""
    texts = (prefix + binascii.b2a_base64(png, newline=False).decode() for png in images)
    return _encode([{"url": None, "b64_json": text} for text in texts])


def _encode(data: list[dict[str, str | None]]) -> bytes:
    return orjson.dumps({"created": int(time.time()), "data": data})


def _seed(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) else None
