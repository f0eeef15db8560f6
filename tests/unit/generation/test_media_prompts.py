"""Prompts with media: expanded placeholders, positions, truncation, and what the engine gets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import Audio, GenerateRequest, Image, Limits, Message, Part, Text
from penstock.dialog.fold import fold
from penstock.engine.types import EngineInfo, TokenRequest
from penstock.generation import Generator
from penstock.generation.media.loader import MediaLoader
from penstock.generation.prompt.builder import PromptBuilder
from penstock.text import ChatTemplate
from tests.support.checkpoints.tiny_tokenizer import CHATML
from tests.support.media.small_processor import (
    AUDIO,
    END,
    IMAGE,
    START,
    PillowDecoder,
    SmallProcessor,
    media_tokenizer,
    png,
    sound,
)
from tests.support.scripted_engine import ScriptedEngine
from tests.unit.generation.scripted_generator import run

TOKENIZER = media_tokenizer()
IDS = TOKENIZER.added_tokens
WIDE = Image(data=png(24, 16))
TALL = Image(data=png(8, 24, (0, 0, 255)))
SOUND = Audio(data=sound(3))
PLAIN = SmallProcessor()
ENGINE_KINDS = ("image", "audio")


def wide() -> list[int]:
    """The tokens of WIDE: two rows of three patches."""
    row = [IDS[IMAGE]] * 3 + TOKENIZER.encode("\n")
    return [IDS[START], *row, *row, IDS[END]]


def generator(
    processor: SmallProcessor, max_model_len: int = 512
) -> tuple[Generator, ScriptedEngine]:
    info = EngineInfo(
        "scripted", max_model_len, 300, 8, 128, 16, 0, "fp", media_kinds=("image", "audio")
    )
    engine = ScriptedEngine([65], info=info)
    template = ChatTemplate(CHATML, placeholders=processor.placeholders)
    media = MediaLoader(processor, PillowDecoder(processor), None)
    return Generator(engine, TOKENIZER, template, media=media), engine


def messages(*parts: Part | str) -> tuple[Message, ...]:
    return (Message("user", tuple(Text(p) if isinstance(p, str) else p for p in parts)),)


async def _events(made: Generator, request: GenerateRequest) -> list[Any]:
    return [event async for event in run(made, request)]


def sent(
    *parts: Part | str,
    processor: SmallProcessor = PLAIN,
    max_model_len: int = 512,
    **fields: Any,
) -> TokenRequest:
    """Return what the engine gets for a message with these parts."""
    made, engine = generator(processor, max_model_len)
    fields.setdefault("messages", messages(*parts))
    asyncio.run(_events(made, GenerateRequest(**fields)))
    return engine.requests[0]


def items(request: TokenRequest) -> list[list[int]]:
    return [list(request.token_ids[m.start : m.start + m.length]) for m in request.media]


def test_a_placeholder_is_replaced_by_the_tokens_of_its_item() -> None:
    request = sent("a", WIDE, "b", SOUND)
    before = TOKENIZER.encode("<|im_start|>user\na\n")
    after = TOKENIZER.encode("\nb\n")
    end = TOKENIZER.encode("<|im_end|>\n<|im_start|>assistant\n")
    assert list(request.token_ids) == [*before, *wide(), *after, *[IDS[AUDIO]] * 3, *end]
    image, audio = request.media
    assert (image.start, image.length) == (len(before), len(wide()))
    assert items(request) == [wide(), [IDS[AUDIO]] * 3]
    assert image.runs == ((1, 3), (5, 3)) and audio.runs == ((0, 3),)
    assert image.media.shape == (6, 192) and image.digest == image.media.digest()
    assert not image.whole and request.rope_positions == b""


def test_rows_of_the_tower_are_at_placeholder_tokens() -> None:
    request = sent(TALL, "then", WIDE)
    for item in request.media:
        for first, count in item.runs:
            start = item.start + first
            assert set(request.token_ids[start : start + count]) == {IDS[IMAGE]}


def test_equal_items_have_equal_digests_and_their_own_places() -> None:
    first, second, third = sent(WIDE, TALL, WIDE).media
    assert first.digest == third.digest != second.digest
    assert first.media is third.media and first.start < second.start < third.start


def test_whole_items_are_whole_in_the_engine() -> None:
    (item,) = sent(WIDE, processor=SmallProcessor(whole=True)).media
    assert item.whole


def test_positions_of_a_family_with_3d_positions() -> None:
    request = sent("ab", WIDE, processor=SmallProcessor(rope_is_3d=True))
    positions = np.frombuffer(request.rope_positions, np.int32).reshape(3, -1)
    assert positions.shape[1] == len(request.token_ids)
    (item,) = request.media
    row = slice(item.start + 5, item.start + 8)
    assert positions[:, row].tolist() == [[row.start, row.start + 1, row.start + 2], [1] * 3,
                                          [0, 1, 2]]  # fmt: skip
    text = sent("ab", processor=SmallProcessor(rope_is_3d=True))
    assert text.rope_positions == b"" and text.media == ()


def test_choices_share_the_media() -> None:
    made, engine = generator(SmallProcessor())
    asyncio.run(_events(made, GenerateRequest(messages=messages(WIDE), n=3)))
    first, *others = engine.requests
    assert len(others) == 2
    assert all(other.media[0].media is first.media[0].media for other in others)


def test_usage_and_counting_include_the_tokens_of_media() -> None:
    made, engine = generator(SmallProcessor())
    request = GenerateRequest(messages=messages("a", WIDE))
    answer = fold(asyncio.run(_events(made, request)))
    assert answer.usage.prompt_tokens == len(engine.requests[0].token_ids)
    assert asyncio.run(made.count(request)) == answer.usage.prompt_tokens


def test_the_next_turn_starts_with_the_same_tokens_and_digests() -> None:
    made, engine = generator(SmallProcessor())
    first = messages("a", WIDE)
    turns = (*first, Message("assistant", (Text("A"),)), *messages("b"))
    for talk in (first, turns):
        asyncio.run(_events(made, GenerateRequest(messages=talk)))
    before, after = engine.requests
    assert after.token_ids[: len(before.token_ids)] == before.token_ids
    assert [(m.digest, m.start) for m in after.media] == [(m.digest, m.start) for m in before.media]


def test_users_cannot_write_tokens_of_media() -> None:
    request = sent(f"{IMAGE} {START}{IMAGE}{END}", WIDE, IMAGE)
    assert list(request.token_ids).count(IDS[IMAGE]) == 6
    assert items(request) == [wide()]
    assert list(sent(IMAGE).token_ids).count(IDS[IMAGE]) == 0


def test_a_prompt_that_is_too_long_with_its_media_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded):
        sent("a", WIDE, TALL, max_model_len=40)
    assert len(sent("a", max_model_len=40).token_ids) < 40


def talk(*turns: Sequence[Part | str]) -> tuple[Message, ...]:
    found: list[Message] = []
    for turn in turns:
        found += [*messages(*turn), Message("assistant", (Text("ok"),))]
    return tuple(found[:-1])


def test_truncation_drops_whole_turns_with_their_media() -> None:
    turns = talk([WIDE, "first"], ["second", TALL], [WIDE])
    limits = Limits(max_tokens=1, truncate=True)
    request = sent(messages=turns, limits=limits, max_model_len=80)
    assert items(request)[-1] == wide() and len(request.media) == 2
    assert b"first" not in b"".join(map(TOKENIZER.token_bytes, request.token_ids))
    request = sent(messages=turns, limits=limits, max_model_len=60)
    assert items(request) == [wide()]


def test_truncation_of_the_last_message_cuts_its_text_and_no_item() -> None:
    limits = Limits(max_tokens=1, truncate=True)
    request = sent("x" * 100, WIDE, "y" * 10, limits=limits, max_model_len=60)
    assert items(request) == [wide()]
    shown = b"".join(map(TOKENIZER.token_bytes, request.token_ids)).decode()
    before, after = shown.split(START)
    assert before.startswith("<|im_start|>user\nx") and after.endswith(
        f"{END}\n{'y' * 10}<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(ContextLengthExceeded):
        sent("x", WIDE, limits=limits, max_model_len=20)


def test_whitespace_that_meets_at_an_item_is_encoded_together() -> None:
    """As in a prompt that was tokenized as a whole, with tokens for several line breaks."""
    tokenizer = media_tokenizer("\n\n", "\n\n\n", "\n\n\n\n\n\n")
    processor = SmallProcessor(margin="\n\n")
    loader = MediaLoader(processor, PillowDecoder(processor), None)
    template = ChatTemplate(CHATML, placeholders=processor.placeholders)
    builder = PromptBuilder(tokenizer, template, processor)
    request = GenerateRequest(messages=messages("a", WIDE, WIDE, "b"))
    (prompt,) = builder.build(request, 512, 300, asyncio.run(loader.load(request)))
    text = b"".join(map(tokenizer.token_bytes, prompt.token_ids)).decode()
    assert list(prompt.token_ids) == tokenizer.encode(text) and "\n\n\n\n\n" in text
    for item in prompt.media:
        for first, count in item.runs:
            start = item.start + first
            assert prompt.token_ids[start - 1 : start + count + 1] == (
                prompt.token_ids[start - 1],
                *[IDS[IMAGE]] * 3,
                tokenizer.encode("\n")[0],
            )
    assert prompt.token_ids[prompt.media[0].start] == IDS[START]


def test_kinds_that_the_engine_lacks_are_refused() -> None:
    made, _ = generator(SmallProcessor())
    request = GenerateRequest(messages=messages(WIDE))
    text_only = ScriptedEngine([65])
    refusing = Generator(text_only, TOKENIZER, ChatTemplate(CHATML))
    with pytest.raises(InvalidRequest, match="the model reads text only"):
        asyncio.run(_events(refusing, request))
    assert made.media_kinds == ENGINE_KINDS and refusing.media_kinds == ()
