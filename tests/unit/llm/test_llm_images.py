"""Images in embedded use, over a scripted image model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.agent import Runners
from penstock.base.errors import InvalidRequest
from penstock.dialog import TextToImageRequest
from penstock.engine.image_maker import ImageMaker
from penstock.engine.local import LocalEngine
from penstock.engine.media_core import MediaCore
from penstock.generation.images.images import ImageRunner
from penstock.llm import LLM, EmbeddedModel
from penstock.runtime.images.painter import Picture
from tests.support.images.stripe_painter import StripePainter, png_of

REQUEST = TextToImageRequest("a cat", n=2, height=32, width=16, seed=5, negative_prompt="dog")


async def start() -> EmbeddedModel:
    engine = LocalEngine(MediaCore(ImageMaker(StripePainter()), 8))
    return EmbeddedModel(Runners(painter=ImageRunner(engine)), 1, engine.close)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_embedded_model(start) as llm:
        yield llm


async def test_images_are_png_files_with_seeds_in_order(llm: LLM) -> None:
    pictures = [Picture("a cat", 32, 16, seed, "dog") for seed in (5, 6)]
    assert llm.paint(REQUEST) == await llm.apaint(REQUEST) == list(map(png_of, pictures))


def test_images_without_a_seed_differ(llm: LLM) -> None:
    small = TextToImageRequest("a cat", n=1, height=16, width=16)
    assert len({llm.paint(small)[0] for _ in range(8)}) > 1


def test_invalid_image_arguments_are_refused(llm: LLM) -> None:
    for wrong in (
        TextToImageRequest(""),
        TextToImageRequest("a", n=11),
        TextToImageRequest("a", height=17),
        TextToImageRequest("a", height=4096, width=4096),
        TextToImageRequest("a", seed="x"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequest):
            llm.paint(wrong)
    with pytest.raises(InvalidRequest, match="makes images and does nothing else"):
        llm.speak("hi")
