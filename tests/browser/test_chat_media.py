"""Models that speak or draw answer in the chat. The speaker and the painter are doubles; the
engine, the server and the store are real."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from playwright.sync_api import expect

from tests.browser.chat_steps import answers, ask, composer, questions
from tests.browser.conftest import Visitor
from tests.browser.threaded import served
from tests.contract.images.test_image_answers import painting
from tests.contract.speech.test_speech_answers import speaking
from tests.support.images.stripe_painter import BROKEN, StripePainter
from tests.support.speech.tone_speaker import ToneSpeaker


def test_a_model_that_draws_answers_with_a_picture(
    visit: Callable[..., Visitor], built_page: None
) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[str]:
        async with painting(StripePainter()) as server:
            yield server.url

    with served(make) as server:
        visitor = visit(server)
        visitor.expect_errors("500")
        page = visitor.open()
        expect(composer(page)).to_have_attribute("placeholder", "Describe a picture")
        page.get_by_label("Size of the picture").select_option("512x512")
        ask(page, "a cat")
        picture = answers(page).get_by_role("button", name="Enlarge picture.png").locator("img")
        expect(picture).to_be_visible()
        page.wait_for_function("() => document.querySelector('article img').naturalWidth === 512")
        visitor.picture(page, "drawn")
        page.reload()
        expect(picture).to_be_visible()
        expect(questions(page)).to_contain_text("a cat")
        page.get_by_role("button", name="Write another answer").click()
        expect(questions(page)).to_contain_text("2/2")
        ask(page, BROKEN)
        expect(page.get_by_text("The model failed at this request.")).to_be_visible()
        expect(composer(page)).to_have_value(BROKEN)


def test_a_picture_that_is_drawn_can_be_stopped(
    visit: Callable[..., Visitor], built_page: None
) -> None:
    painter = StripePainter(held=True)

    @asynccontextmanager
    async def make() -> AsyncIterator[str]:
        async with painting(painter) as server:
            yield server.url

    with served(make) as server:
        visitor = visit(server)
        page = visitor.open()
        ask(page, "a slow cat")
        expect(page.get_by_text("Drawing")).to_be_visible()
        visitor.picture(page, "drawing")
        page.keyboard.press("Escape")
        expect(page.get_by_text("Drawing")).to_have_count(0)
        expect(composer(page)).to_have_value("a slow cat")


def test_a_model_that_speaks_answers_with_sound(
    visit: Callable[..., Visitor], built_page: None
) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[str]:
        async with speaking(ToneSpeaker()) as server:
            yield server.url

    with served(make) as server:
        visitor = visit(server)
        page = visitor.open()
        expect(composer(page)).to_have_attribute("placeholder", re.compile("spoken"))
        ask(page, "one two three")
        sound = answers(page).locator("audio")
        expect(sound).to_have_attribute("aria-label", "speech.wav")
        page.wait_for_function("() => document.querySelector('article audio').duration > 0")
        assert sound.evaluate("audio => Number.isFinite(audio.duration)")
        visitor.picture(page, "spoken")
