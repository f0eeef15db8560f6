"""LLaVA-OneVision cuts an image into tiles only if it is the only one of the prompt."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import transformers

from penstock.dialog import GenerateRequest, Image, Message, Text
from penstock.generation.media.loader import MediaLoader
from penstock.generation.prompt.builder import PromptBuilder
from penstock.generation.prompt.context_budget import Prompt
from penstock.models.media.tiles import TileLayout
from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text import ChatTemplate
from tests.support.checkpoints.tiny_tokenizer import tiny_data, tiny_tokenizer
from tests.support.media.small_processor import PillowDecoder, png
from tests.support.vision_cases import CASES
from tests.support.vision_models import VISION, media_spec
from tests.unit.text.test_media_templates import LLAVA

WIDE, HIGH = Image(data=png(60, 40)), Image(data=png(20, 90))
BASE_ROWS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a config, an image processor and the names of the tokens."""
    made = tmp_path_factory.mktemp("onevision")
    case = CASES["llava-onevision"]
    config = transformers.LlavaOnevisionConfig(
        text_config=case.text, vision_config=VISION | case.vision, **case.whole
    )
    config.architectures = ["LlavaOnevisionForConditionalGeneration"]
    config.save_pretrained(made)
    case.processor().save_pretrained(made)
    (made / "tokenizer_config.json").write_text(json.dumps({"image_token": "<image>"}))
    return made


def prompt_of(folder: Path, *messages: Message) -> Prompt:
    """Return the prompt of a conversation."""
    plain, processor = tiny_data(), media_spec(folder).processor
    tokenizer = tiny_tokenizer(
        tokens=[*plain.tokens, "<image>"],
        token_types=[*plain.token_types, int(TokenType.CONTROL)],
    )
    request = GenerateRequest(messages=messages)
    decoder = PillowDecoder(processor)  # type: ignore[arg-type]
    loaded = asyncio.run(MediaLoader(processor, decoder, None).load(request))
    template = ChatTemplate(LLAVA.strip(), placeholders=processor.placeholders)
    builder = PromptBuilder(tokenizer, template, processor)
    (prompt,) = builder.build(request, 4096, tokenizer.vocab_size, loaded)
    return prompt


def test_a_lone_image_is_cut_into_tiles(folder: Path) -> None:
    prompt = prompt_of(folder, Message("user", (WIDE, Text("What is it?"))))
    (item,) = prompt.media
    assert len(TileLayout.of(item.media).grids) > 1
    assert item.length > BASE_ROWS + 1


def test_images_of_different_messages_have_one_tile_each(folder: Path) -> None:
    prompt = prompt_of(
        folder,
        Message("user", (WIDE, Text("What is it?"))),
        Message("assistant", (Text("A square."),)),
        Message("user", (HIGH, Text("And this?"))),
    )
    for item in prompt.media:
        assert len(TileLayout.of(item.media).grids) == 1
        assert item.length == BASE_ROWS + 1
        assert item.digest == item.media.digest()
    assert len({item.digest for item in prompt.media}) == 2
