"""An image engine: turns, aborts at the next step, faults, and its own process."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from penstock.base.errors import InvalidRequest, Overloaded
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.image_maker import ImageMaker
from penstock.engine.ipc.client import EngineClient
from penstock.engine.media_core import MediaCore
from penstock.engine.processes.fleet import EngineFleet
from penstock.engine.types import ImageOutput, ImageRequest, SpeechRequest, TokenRequest
from penstock.runtime.images.painter import Picture
from tests.support.images.stripe_painter import BROKEN, STEPS, StripePainter, png_of


def core_of(painter: StripePainter, max_queue: int = 8) -> MediaCore:
    return MediaCore(ImageMaker(painter), max_queue)


def run(core: MediaCore) -> list[ImageOutput]:
    outputs = []
    while core.has_work:
        outputs += core.step()
    return outputs


def test_a_step_is_a_denoising_step_and_the_last_one_gives_the_image() -> None:
    painter = StripePainter()
    core = core_of(painter)
    core.paint(ImageRequest("a", "a cat", 16, 32, 9))
    assert [core.step() for _ in range(STEPS)] == [[]] * STEPS
    picture = Picture("a cat", 16, 32, 9)
    assert core.step() == [ImageOutput("a", png_of(picture), "stop")]
    assert not core.has_work and painter.stopped == 0


def test_every_image_has_the_next_seed_and_requests_take_turns_by_image() -> None:
    core = core_of(StripePainter())
    core.paint(ImageRequest("a", "one", 16, 16, 2**63 - 1, n=2, negative_prompt="x"))
    core.paint(ImageRequest("b", "three", 16, 16, 5))
    outputs = run(core)
    assert [(one.id, one.finish) for one in outputs] == [("a", None), ("b", "stop"), ("a", "stop")]
    pictures = [Picture("one", 16, 16, seed, "x") for seed in (2**63 - 1, 0)]
    assert [one.png for one in outputs if one.id == "a"] == list(map(png_of, pictures))


def test_an_abort_stops_at_the_next_step() -> None:
    painter = StripePainter()
    core = core_of(painter)
    core.paint(ImageRequest("a", "a cat", 16, 16, 0, n=5))
    core.step()
    core.abort("a")
    assert not core.has_work
    assert (painter.steps, painter.stopped) == (1, 1)
    assert core.gauges().completed_abort == 1


def test_a_failing_image_ends_only_its_request() -> None:
    core = core_of(StripePainter())
    core.paint(ImageRequest("bad", BROKEN, 16, 16, 0))
    core.paint(ImageRequest("good", "a cat", 16, 16, 0))
    assert {one.id: one.finish for one in run(core)} == {"bad": "error", "good": "stop"}


def test_wrong_sizes_and_other_requests_are_refused_by_name() -> None:
    core = core_of(StripePainter(), max_queue=1)
    for height, width, field in ((15, 16, "height"), (16, 40, "width"), (0, 16, "height")):
        with pytest.raises(InvalidRequest, match="must be a multiple of 16") as caught:
            core.paint(ImageRequest("a", "a cat", height, width, 0))
        assert caught.value.field == field
    with pytest.raises(InvalidRequest, match="does not speak"):
        core.speak(SpeechRequest("s", ("hi",)))
    with pytest.raises(InvalidRequest, match="writes no text"):
        core.submit(TokenRequest("t", (1,), Sampling(), 0, 5))
    core.paint(ImageRequest("a", "a cat", 16, 16, 0))
    with pytest.raises(Overloaded):
        core.paint(ImageRequest("b", "a cat", 16, 16, 0))


@pytest.mark.slow
async def test_an_image_model_runs_in_its_own_process(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    from tests.support.images.tiny_pipelines import save_flux

    folder = save_flux(tmp_path)
    settings = EngineSettings(model=str(folder), device="cpu", threads=1)
    fleet = EngineFleet({"painter": settings})
    client = None
    try:
        await fleet.start(["painter"])
        await fleet.load("painter")
        client = EngineClient(fleet.socket_path("painter"))
        assert (await client.wait_ready()).image_multiple == 4
        request = ImageRequest("a", "a cat", 32, 48, 3, n=2)
        outputs = [one async for one in client.paint(request)]
        assert [one.finish for one in outputs] == [None, "stop"]
        assert [Image.open(BytesIO(one.png)).size for one in outputs] == [(48, 32)] * 2
        assert outputs[0].png != outputs[1].png
    finally:
        if client is not None:
            await client.close()
        await fleet.stop()
