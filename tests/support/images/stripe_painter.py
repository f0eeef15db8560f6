"""The double of an image model: its images are PNG files of one colour."""

from __future__ import annotations

import threading
from collections.abc import Generator
from io import BytesIO

from PIL import Image

from penstock.runtime.images.painter import PainterInfo, Picture, Progress

STEPS = 3
MULTIPLE = 16
BROKEN = "broken"


def png_of(picture: Picture) -> bytes:
    """Return the image of a picture: its colour is its seed, and the length of its prompts."""
    colour = (picture.seed % 256, len(picture.prompt) % 256, len(picture.negative_prompt) % 256)
    file = BytesIO()
    Image.new("RGB", (picture.width, picture.height), colour).save(file, "PNG")
    return file.getvalue()


class StripePainter:
    """Implements `penstock.runtime.images.painter.Painter`. An image takes STEPS steps; one whose
    prompt is BROKEN fails. With `held`, each step waits for a permit of `permits`."""

    report = "no memory"

    def __init__(self, *, held: bool = False, multiple: int = MULTIPLE) -> None:
        self.info = PainterInfo("stripes", "fp_stripes", multiple, 0)
        self.held = held
        self.permits = threading.Semaphore(0)
        self.started: list[Picture] = []
        self.steps = 0
        self.stopped = 0

    def paint(self, picture: Picture) -> Generator[Progress, None, None]:
        self.started.append(picture)
        finished = False
        try:
            for done in range(1, STEPS + 1):
                if self.held:
                    self.permits.acquire()
                self.steps += 1
                yield Progress(done, STEPS)
            if picture.prompt == BROKEN:
                raise RuntimeError("a broken image")
            finished = True
            yield Progress(STEPS, STEPS, png_of(picture))
        finally:
            self.stopped += not finished

    def close(self) -> None:
        self.held = False
