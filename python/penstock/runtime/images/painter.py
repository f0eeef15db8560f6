"""The interface of a loaded image model."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import msgspec


class PainterInfo(msgspec.Struct, frozen=True):
    """Describes a loaded image model.

    `model_id`, `fingerprint`: name, and identification of its files.
    `multiple`: the number that divides the height and the width of its images.
    `weight_bytes`: size of the weights.
    """

    model_id: str
    fingerprint: str
    multiple: int
    weight_bytes: int


class Picture(msgspec.Struct, frozen=True):
    """One image to make. `height`, `width`: pixels, multiples of `PainterInfo.multiple`."""

    prompt: str
    height: int
    width: int
    seed: int
    negative_prompt: str = ""


class Progress(msgspec.Struct, frozen=True):
    """The state of an image after a step. `steps`: number of steps, None if unknown. `png`: the PNG
    file, set after the last step."""

    done: int
    steps: int | None = None
    png: bytes | None = None


class Painter(Protocol):
    """A loaded image model. Not thread-safe: all calls must come from one thread."""

    @property
    def info(self) -> PainterInfo: ...

    @property
    def report(self) -> str:
        """The memory that the model needs, in one line."""

    def paint(self, picture: Picture) -> Generator[Progress, None, None]:
        """Return the steps of an image. Each `next` computes one denoising step; closing the
        generator stops the image. Raises RuntimeError if the model fails."""

    def close(self) -> None:
        """Release the memory. No other method may be called afterwards."""
