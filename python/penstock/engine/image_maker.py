"""Makes the images of requests with a loaded image model, one denoising step per step."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.engine.types import EngineInfo, ImageOutput, ImageRequest
from penstock.runtime.images.painter import Painter, Picture, Progress

log = logging.getLogger(__name__)

PROGRESS_S: Final = 5.0
"""Seconds between two lines of progress in the log."""
SEEDS: Final = 2**63


class ImageMaker:
    """Makes images with one model. `info`: describes the engine."""

    def __init__(self, painter: Painter) -> None:
        facts = painter.info
        self._painter = painter
        self.report = painter.report
        self.info = EngineInfo(
            model_id=facts.model_id,
            max_model_len=0,
            vocab_size=0,
            max_num_seqs=1,
            cache_blocks=0,
            block_size=0,
            weight_bytes=facts.weight_bytes,
            fingerprint=facts.fingerprint,
            memory_bytes=facts.weight_bytes,
            image_multiple=facts.multiple,
        )

    def start(self, request: ImageRequest) -> Generator[ImageOutput | None, None, None]:
        """Return the steps of a request. Raises InvalidRequest for a side that the model cannot
        make."""
        multiple = self.info.image_multiple
        for name, side in (("height", request.height), ("width", request.width)):
            if side < multiple or side % multiple:
                raise InvalidRequest(
                    f"`{name}` must be a multiple of {multiple} for this model, not {side}",
                    field=name,
                )
        return self._steps(request)

    def failure(self, request_id: str, reason: str) -> ImageOutput:
        """Return the last output of a request that has failed."""
        return ImageOutput(request_id, b"", "error", reason)

    def close(self) -> None:
        """Free the model's memory."""
        self._painter.close()

    def _steps(self, request: ImageRequest) -> Generator[ImageOutput | None, None, None]:
        for index in range(request.n):
            picture = Picture(
                request.prompt,
                request.height,
                request.width,
                (request.seed + index) % SEEDS,
                request.negative_prompt,
            )
            last = index == request.n - 1
            logged_s = time.monotonic()
            steps = self._painter.paint(picture)
            try:
                for progress in steps:
                    if progress.png is not None:
                        yield ImageOutput(request.id, progress.png, "stop" if last else None)
                        break
                    if time.monotonic() - logged_s >= PROGRESS_S:
                        logged_s = time.monotonic()
                        _log_progress(request, index, progress)
                    yield None
            finally:
                steps.close()


def _log_progress(request: ImageRequest, index: int, progress: Progress) -> None:
    total = "" if progress.steps is None else f" of {progress.steps}"
    log.info(
        "request %s, image %d of %d: step %d%s",
        request.id,
        index + 1,
        request.n,
        progress.done,
        total,
    )
