"""Runs requests for images: checks their sizes and collects their images."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from penstock.base.errors import EngineFault, InvalidRequest
from penstock.base.ids import new_id
from penstock.dialog import MadeImage, TextToImageRequest
from penstock.dialog.ranges import (
    DEFAULT_HEIGHT,
    DEFAULT_WIDTH,
    MAX_IMAGE_PIXELS,
    MAX_IMAGE_SIDE,
    MAX_IMAGES,
    MAX_PROMPT_CHARS,
)
from penstock.engine.protocol import Engine
from penstock.engine.types import ImageRequest

SEED_BITS: Final = 63


class ImageRunner:
    """Runs the image requests of one model. To be called from the engine's asyncio loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def paint(self, request: TextToImageRequest) -> AsyncGenerator[MadeImage, None]:
        """Yield the images of a request. Closing the generator stops the image that is being made.

        Raises InvalidRequest, and the engine's errors: Overloaded, Unavailable, EngineFault.
        """
        _check(request)
        order = self._order(request)
        # `paint` is declared as AsyncIterator, but every engine returns a generator: aclose()
        # aborts it.
        async with aclosing(self._engine.paint(order)) as outputs:  # type: ignore[type-var]
            async for output in outputs:
                if output.finish == "error":
                    raise EngineFault(output.error or "the engine failed this request")
                yield MadeImage(output.png)

    def _order(self, request: TextToImageRequest) -> ImageRequest:
        multiple = self._engine.info.image_multiple
        height = request.height or max(multiple, DEFAULT_HEIGHT - DEFAULT_HEIGHT % multiple)
        width = request.width or max(multiple, DEFAULT_WIDTH - DEFAULT_WIDTH % multiple)
        if height * width > MAX_IMAGE_PIXELS:
            raise InvalidRequest(
                f"`height` times `width` must be at most {MAX_IMAGE_PIXELS} pixels,"
                f" not {height * width}",
                field="height",
            )
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed
        return ImageRequest(
            id=new_id("image_"),
            prompt=request.prompt,
            height=height,
            width=width,
            seed=seed % 2**SEED_BITS,
            n=request.n,
            negative_prompt=request.negative_prompt,
        )


def _check(request: TextToImageRequest) -> None:
    if not request.prompt.strip():
        raise InvalidRequest("`prompt` must describe an image, not be empty", field="prompt")
    for name, value, most in (
        ("prompt", len(request.prompt), MAX_PROMPT_CHARS),
        ("negative_prompt", len(request.negative_prompt), MAX_PROMPT_CHARS),
    ):
        if value > most:
            raise InvalidRequest(
                f"`{name}` must be a string of at most {most} characters, not one of {value}",
                field=name,
            )
    for name, number, most in (
        ("n", request.n, MAX_IMAGES),
        ("height", request.height, MAX_IMAGE_SIDE),
        ("width", request.width, MAX_IMAGE_SIDE),
    ):
        if number is not None and not 1 <= number <= most:
            raise InvalidRequest(
                f"`{name}` must be an integer from 1 to {most}, not {number}", field=name
            )
