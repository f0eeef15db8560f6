"""Requests for images, and their answers."""

from __future__ import annotations

import msgspec


class TextToImageRequest(msgspec.Struct, frozen=True):
    """Images to make from a prompt.

    - `model`: None for the default model.
    - `n`: number of images.
    - `height`, `width`: pixels, multiples of the model's own number; None for DEFAULT_HEIGHT and
      DEFAULT_WIDTH, rounded down to multiples.
    - `seed`: makes the images reproducible; every further image has the next number. None: random.
    - `negative_prompt`: describes what the images shall not show, for models that support it.
    """

    prompt: str
    model: str | None = None
    n: int = 1
    height: int | None = None
    width: int | None = None
    seed: int | None = None
    negative_prompt: str = ""


class MadeImage(msgspec.Struct, frozen=True):
    """The next image of a request. `png`: the PNG file."""

    png: bytes
