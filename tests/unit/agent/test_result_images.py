"""Images of server tools reach a model that reads images."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.agent import AgentLoop
from penstock.agent.in_memory import MemoryApprovals, MemoryFiles
from penstock.agent.loop import MAX_RESULT_IMAGES
from penstock.agent.mcp.results import call_result
from penstock.agent.tool_provider import ToolProvider, ToolSources
from penstock.agent.tools.tool import CallContext, ToolOutcome
from penstock.config import AgentSettings
from penstock.dialog import CustomActivity, Image, ToolCompleted
from penstock.engine.types import TokenRequest
from penstock.generation import Generator
from penstock.generation.media.loader import MediaLoader
from penstock.models.media.prepared import MediaKind
from penstock.text import ChatTemplate
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax
from tests.support.agent_loops import CONTEXT, Arguments, FixedTools, TestTool, ask, call
from tests.support.checkpoints.tiny_tokenizer import CHATML
from tests.support.media.small_processor import (
    IMAGE,
    PillowDecoder,
    SmallProcessor,
    media_tokenizer,
    png,
)
from tests.support.scripted_engine import INFO, ScriptedEngine

TOKENIZER = media_tokenizer()


@dataclass
class Camera(TestTool):
    """A tool whose result has images."""

    images: tuple[bytes, ...] = ()

    async def run(self, arguments: Arguments, context: CallContext) -> ToolOutcome:
        activity = CustomActivity(arguments="{}", status="success", content="taken")
        return ToolOutcome(activity, {"output": "taken"}, images=self.images)


async def second_round(
    images: tuple[bytes, ...], kinds: tuple[MediaKind, ...] = ("image",)
) -> tuple[TokenRequest, str, tuple[Image, ...]]:
    """Return the request of the round after a call, its prompt, and the images of the call."""
    left = iter([call("echo"), "I see."])
    info = msgspec.structs.replace(INFO, max_model_len=CONTEXT, vocab_size=300, media_kinds=kinds)
    engine = ScriptedEngine(lambda _: list(next(left, "").encode()), info=info)
    processor = SmallProcessor()
    generator = Generator(
        engine,  # type: ignore[arg-type]
        TOKENIZER,
        ChatTemplate(CHATML, placeholders=processor.placeholders),
        syntax=AnswerSyntax(calls=TOOL_SYNTAXES["hermes"]),
        media=MediaLoader(processor, PillowDecoder(processor), None),
    )
    offered = FixedTools((Camera(images=images),))
    sources = ToolSources(
        AgentSettings(), MemoryFiles(), MemoryApprovals(timeout_s=60), mcp=offered
    )
    loop = AgentLoop(generator, tools=ToolProvider(sources))
    events = [event async for event in loop.run(ask())]
    (run,) = (event.run for event in events if isinstance(event, ToolCompleted))
    request = engine.requests[1]
    shown = b"".join(map(TOKENIZER.token_bytes, request.token_ids)).decode()
    return request, shown, run.images


async def test_a_model_that_reads_images_sees_those_of_a_result() -> None:
    request, shown, images = await second_round((png(8, 8), png(16, 8)))
    assert [item.media.shape[0] for item in request.media] == [1, 2]
    assert shown.index("taken") < shown.index(IMAGE)
    assert images == (Image(data=png(8, 8)), Image(data=png(16, 8)))


async def test_a_model_without_images_sees_no_trace_of_them() -> None:
    request, shown, images = await second_round((png(8, 8),), kinds=())
    assert request.media == () and images == () and "image" not in shown


async def test_the_first_images_of_many_are_shown() -> None:
    request, _, _ = await second_round((png(8, 8),) * (MAX_RESULT_IMAGES + 2))
    assert len(request.media) == MAX_RESULT_IMAGES


async def test_an_image_that_cannot_be_decoded_is_a_note() -> None:
    request, shown, _ = await second_round((b"<svg/>", png(8, 8)))
    assert len(request.media) == 1 and "[image left out: " in shown


@pytest.mark.parametrize(("data", "images"), [("iVBORw0K", 1), ("no base64!", 0)])
def test_images_of_mcp_results_are_taken(data: str, images: int) -> None:
    part = SimpleNamespace(type="image", mime_type="image/png", data=data)
    result: Any = SimpleNamespace(content=[part], structured_content=None, is_error=False)
    found = call_result(result)
    assert found.text == "[Image: image/png]" and len(found.images) == images
    assert all(image == base64.b64decode(data) for image in found.images)
