"""`POST /v1/images/generations` as clients see it, over real HTTP and a real engine."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from penstock.agent import AgentLoop, Runners
from penstock.api.route_table.table import OPERATIONS
from penstock.engine.image_maker import ImageMaker
from penstock.engine.local import LocalEngine
from penstock.engine.media_core import MediaCore
from penstock.generation import Generator
from penstock.generation.images.images import ImageRunner
from penstock.runtime.images.painter import Picture
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.images.stripe_painter import BROKEN, StripePainter, png_of
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving

URL = "/v1/images/generations"
DATA_URL = "data:image/png;base64,"


@asynccontextmanager
async def painting(painter: StripePainter, max_queue: int = 8) -> AsyncIterator[Serving]:
    """A server with an image model, and a model that writes text."""
    engine = LocalEngine(MediaCore(ImageMaker(painter), max_queue))
    writer = AgentLoop(Generator(ScriptedEngine([5]), tiny_tokenizer(), tiny_template()))
    models = {MODEL: Runners(painter=ImageRunner(engine)), "writer": writer}
    try:
        async with serving(models=models, engine=engine) as server:
            yield server
    finally:
        painter.held = False
        painter.permits.release(1000)
        await engine.close()


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with painting(StripePainter()) as running:
        yield running


async def made(server: Serving, **body: Any) -> list[dict[str, Any]]:
    answer = await server.http.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert set(content) == {"created", "data"} and content["created"] > 0
    data: list[dict[str, Any]] = content["data"]
    return data


async def refused(server: Serving, path: str = URL, **body: Any) -> dict[str, Any]:
    answer = await server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def png_in(entry: dict[str, Any]) -> bytes:
    assert entry["url"] is None
    return base64.b64decode(entry["b64_json"].removeprefix(DATA_URL), validate=True)


@pytest.mark.parametrize("form", [{}, {"response_format": "Url"}, {"response_format": "url"}])
async def test_url_is_the_name_of_a_stored_file(server: Serving, form: dict[str, str]) -> None:
    (entry,) = await made(server, prompt="a cat", seed=4, **form)
    assert entry["b64_json"] is None
    name = entry["url"]
    assert name.startswith("image-generation-") and name.endswith(".png")
    content = await server.http.get(f"/v1/files/{name}/content")
    assert content.headers["content-type"] == "image/png"
    assert content.content == png_of(Picture("a cat", 720, 1280, 4))
    file = (await server.http.get(f"/v1/files/{name}")).json()
    assert (file["filename"], file["mime_type"]) == (name, "image/png")
    assert file["source"]["tool"] == "image_generation"


async def test_b64json_is_a_data_url(server: Serving) -> None:
    (entry,) = await made(server, prompt="a cat", seed=4, response_format="B64Json")
    assert entry["b64_json"].startswith(DATA_URL)
    assert png_in(entry) == png_of(Picture("a cat", 720, 1280, 4))


async def test_b64_json_of_openai_is_plain_base64(server: Serving) -> None:
    (entry,) = await made(server, prompt="a cat", seed=4, response_format="b64_json")
    assert not entry["b64_json"].startswith("data:")
    assert png_in(entry) == png_of(Picture("a cat", 720, 1280, 4))


async def test_size_is_720_by_1280_by_default_and_as_asked(server: Serving) -> None:
    (entry,) = await made(server, prompt="a", response_format="B64Json")
    assert Image.open(BytesIO(png_in(entry))).size == (1280, 720)
    (entry,) = await made(server, prompt="a", response_format="B64Json", height=32, width=64)
    assert Image.open(BytesIO(png_in(entry))).size == (64, 32)


async def test_default_size_is_rounded_to_what_the_model_makes() -> None:
    async with painting(StripePainter(multiple=64)) as server:
        (entry,) = await made(server, prompt="a", response_format="B64Json")
        assert Image.open(BytesIO(png_in(entry))).size == (1280, 704)


async def test_n_images_have_seeds_of_their_own(server: Serving) -> None:
    fields = {"prompt": "a cat", "height": 16, "width": 16, "response_format": "B64Json"}
    data = await made(server, **fields, n=3, seed=7, negative_prompt="dog")
    pictures = [Picture("a cat", 16, 16, seed, "dog") for seed in (7, 8, 9)]
    assert [png_in(entry) for entry in data] == list(map(png_of, pictures))
    assert len(await made(server, **fields, n=None)) == 1


@pytest.mark.parametrize("value", [None, 3, "x", [1], {"a": 1}, True])
async def test_ignored_fields_take_any_value(server: Serving, value: Any) -> None:
    names = ("quality", "style", "steps", "guidance_scale", "user", "seed", "unknown")
    fields = dict.fromkeys(names, value)
    assert await made(server, prompt="a", height=16, width=16, **fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "  "}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "a" * 32769}, "prompt"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 11}, "n"),
        ({"prompt": "a", "n": "2"}, "n"),
        ({"prompt": "a", "height": 0}, "height"),
        ({"prompt": "a", "height": 17}, "height"),
        ({"prompt": "a", "width": 4112}, "width"),
        ({"prompt": "a", "height": 4096, "width": 4096}, "height"),
        ({"prompt": "a", "size": "512x512"}, "size"),
        ({"prompt": "a", "response_format": "png"}, "response_format"),
        ({"prompt": "a", "negative_prompt": 4}, "negative_prompt"),
    ],
)
async def test_bad_fields_are_named(server: Serving, fields: dict[str, Any], param: str) -> None:
    error = await refused(server, **fields)
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


async def test_a_disconnect_stops_the_image_at_its_next_step() -> None:
    painter = StripePainter(held=True)
    async with painting(painter) as server:
        body = {"prompt": "a", "n": 10, "height": 16, "width": 16}
        request = asyncio.create_task(server.http.post(URL, json=body))
        painter.permits.release(1)
        await server.until(lambda: painter.steps == 1)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await server.until(lambda: painter.permits.release(1) or painter.stopped == 1)
        assert len(painter.started) < 10
        painter.held = False
        assert await made(server, prompt="a", height=16, width=16), "the engine is free"


async def test_a_failure_is_an_error_without_its_text(server: Serving) -> None:
    answer = await server.http.post(URL, json={"prompt": BROKEN, "height": 16, "width": 16})
    assert answer.status_code == 500
    assert "image" not in answer.json()["error"]["message"]


async def test_a_full_queue_is_refused() -> None:
    painter = StripePainter(held=True)
    async with painting(painter, max_queue=1) as server:
        body = {"prompt": "a", "n": 10, "height": 16, "width": 16}
        first = asyncio.create_task(server.http.post(URL, json=body))
        painter.permits.release(1)
        await server.until(lambda: painter.steps == 1)
        second = asyncio.create_task(server.http.post(URL, json=body))
        await server.until(lambda: painter.permits.release(1) or second.done() or first.done())
        statuses = [one.result().status_code for one in (first, second) if one.done()]
        first.cancel()
        assert statuses == [429]


async def test_official_client_reads_images(server: Serving) -> None:
    images = server.openai.images
    inline = await images.generate(
        model=MODEL,
        prompt="a cat",
        n=2,
        response_format="b64_json",
        extra_body={"height": 16, "width": 32, "seed": 1},
    )
    assert inline.data is not None and len(inline.data) == 2
    first = base64.b64decode(inline.data[0].b64_json or "", validate=True)
    assert first == png_of(Picture("a cat", 16, 32, 1))
    stored = await images.generate(
        model=MODEL, prompt="a", extra_body={"height": 16, "width": 16, "seed": 1}
    )
    assert stored.data is not None
    content = await server.openai.files.content(stored.data[0].url or "")
    assert content.content == png_of(Picture("a", 16, 16, 1))
    with pytest.raises(openai.BadRequestError, match="send `height` and `width`"):
        await images.generate(model=MODEL, prompt="a", size="1024x1024")


async def test_official_client_sends_every_field_of_the_specification(server: Serving) -> None:
    small = {"height": 16, "width": 48}
    ignored = {"steps": 3, "guidance_scale": 2.5, "quality": "hd", "style": "vivid"}
    forms: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
        "Url": (small, (48, 16)),
        "B64Json": (small | ignored, (48, 16)),
        "b64_json": ({}, (1280, 720)),
    }
    for form, (fields, size) in forms.items():
        asked: dict[str, Any] = {"model": MODEL, "prompt": "a cat", "n": 1}
        answer = await server.openai.images.generate(
            **asked, extra_body=fields | {"response_format": form}
        )
        (image,) = answer.data or ()
        if form == "Url":
            assert image.b64_json is None
            png = (await server.openai.files.content(image.url or "")).content
        else:
            assert image.url is None and image.b64_json is not None
            assert image.b64_json.startswith(DATA_URL) == (form == "B64Json")
            png = base64.b64decode(image.b64_json.removeprefix(DATA_URL), validate=True)
        assert Image.open(BytesIO(png)).size == size


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/audio/speech", {"input": "hi"}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
async def test_an_image_model_refuses_other_requests(
    server: Serving, path: str, body: dict[str, Any]
) -> None:
    error = await refused(server, path, **body)
    assert error["message"] == (
        "this model makes images and does nothing else: use it in /v1/images/generations,"
        " or name another model"
    )
    assert error["code"] == "unsupported_model"


async def test_a_text_model_refuses_images(server: Serving) -> None:
    error = await refused(server, prompt="hi", model="writer")
    assert error["message"] == "this model makes no images; name an image model"
    assert (error["param"], error["code"]) == ("model", "unsupported_model")


async def test_the_example_of_the_explorer_is_answered(server: Serving) -> None:
    (operation,) = (one for one in OPERATIONS if one.path == URL)
    answer = await server.http.post(URL, json=operation.example)
    assert answer.status_code == 200


async def test_the_model_card_says_that_the_model_makes_images(server: Serving) -> None:
    card = (await server.http.get(f"/v1/models/{MODEL}")).json()
    assert card["architecture"] == {"input_modalities": ["text"], "output_modalities": ["image"]}


async def test_unknown_model_is_not_found(server: Serving) -> None:
    answer: httpx.Response = await server.http.post(URL, json={"prompt": "a", "model": "nobody"})
    assert answer.status_code == 404
