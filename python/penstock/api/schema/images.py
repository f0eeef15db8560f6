"""`POST /v1/images/generations`: the request and the answer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.dialog.ranges import (
    DEFAULT_HEIGHT,
    DEFAULT_WIDTH,
    MAX_IMAGE_SIDE,
    MAX_IMAGES,
    MAX_PROMPT_CHARS,
)


class ImageGenerationRequest(Struct, kw_only=True):
    """A prompt, and the images to make from it."""

    prompt: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)]
    model: f.Model | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_IMAGES, description="Number of images.")] | None = None
    response_format: (
        Annotated[
            Literal["Url", "B64Json", "url", "b64_json"],
            Meta(
                description="`Url` (the default) and `url`: the id of a stored file, which"
                " `/v1/files/{id}/content` returns. `B64Json`: a data URL. `b64_json`: plain"
                " base64.",
                extra={"code": f.UNSUPPORTED},
            ),
        ]
        | None
    ) = None
    height: (
        Annotated[
            int, Meta(ge=1, le=MAX_IMAGE_SIDE, description=f"In pixels. Absent: {DEFAULT_HEIGHT}.")
        ]
        | None
    ) = None
    width: (
        Annotated[
            int, Meta(ge=1, le=MAX_IMAGE_SIDE, description=f"In pixels. Absent: {DEFAULT_WIDTH}.")
        ]
        | None
    ) = None
    negative_prompt: (
        Annotated[
            str,
            Meta(
                max_length=MAX_PROMPT_CHARS,
                description="Describes content to avoid, if the model supports that.",
            ),
        ]
        | None
    ) = None
    seed: f.Seed = None
    size: Annotated[None, f.refused("is not supported; send `height` and `width`")] = None
    quality: f.Ignored = None
    style: f.Ignored = None
    steps: f.Ignored = None
    guidance_scale: f.Ignored = None
    user: f.Ignored = None


class GeneratedImage(Struct):
    """One image. `url`: the id of the stored PNG file. `b64_json`: the PNG file."""

    url: str | None
    b64_json: str | None


class ImageGenerationResponse(Struct):
    """The images of a request. `created`: Unix seconds."""

    created: int
    data: list[GeneratedImage]
