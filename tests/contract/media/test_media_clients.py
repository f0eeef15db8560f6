"""Images through the official clients: every form of each API, over a real model with decoding
processes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints.small_llava import IMAGE_TOKENS
from tests.support.media.small_processor import png
from tests.support.servers.file_server import Files
from tests.support.servers.file_server import serving as serving_files
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import MediaServing, data_url, media_server

RED, BLUE = png(40, 30), png(30, 40, (0, 0, 255))
BASE64 = base64.b64encode(RED).decode()
WORDS = "What is it?"
PLAIN: dict[str, Any] = {"model": MODEL, "temperature": 0}


async def chat(served: MediaServing, *content: Any, **fields: Any) -> Any:
    messages = [{"role": "user", "content": list(content)}]
    fields = {"max_tokens": 6, "messages": messages, **fields}
    return await served.server.openai.chat.completions.create(**PLAIN, **fields)


def image_part(image: bytes = RED) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def words(text: str = WORDS) -> dict[str, Any]:
    return {"type": "text", "text": text}


async def test_chat_takes_images_in_every_form(llava: Path) -> None:
    with serving_files(Files()) as pages:
        pages.add("/red.png", RED, "image/png")
        async with media_server(llava) as served:
            uploaded = await served.server.openai.files.create(
                file=("red.png", RED), purpose="user_data"
            )
            forms = [
                image_part(),
                {"type": "image_url", "image_url": {"url": data_url(RED), "detail": "high"}},
                {"type": "image_url", "image_url": data_url(RED)},
                {"type": "image_url", "image_url": {"url": f"{pages.url}/red.png"}},
                {"type": "file", "file": {"filename": "red.png", "file_data": data_url(RED)}},
                {"type": "file", "file": {"filename": "red.png", "file_data": BASE64}},
                {"type": "file", "file": {"file_id": uploaded.id}},
            ]
            answers = [await chat(served, form, words()) for form in forms]
            assert await served.encoded() == 1
    first = answers[0]
    assert first.usage.prompt_tokens > IMAGE_TOKENS and first.choices[0].message.content
    for answer in answers[1:]:
        assert answer.choices[0].message == first.choices[0].message
        assert answer.usage.prompt_tokens == first.usage.prompt_tokens


async def test_the_model_card_names_the_kinds_that_the_model_reads(llava: Path) -> None:
    async with media_server(llava) as served:
        card: Any = await served.server.openai.models.retrieve(MODEL)
    assert card.architecture == {
        "input_modalities": ["text", "image"],
        "output_modalities": ["text"],
    }


async def test_the_answer_depends_on_the_image_and_its_place(llava: Path) -> None:
    async with media_server(llava) as served:
        contents = [
            (image_part(), words()),
            (image_part(BLUE), words()),
            (words(), image_part()),
            (image_part(), image_part(BLUE), words()),
            (image_part(BLUE), image_part(), words()),
        ]
        answers = {
            (await chat(served, *content, max_tokens=12)).choices[0].message.content
            for content in contents
        }
    assert len(answers) == len(contents)


async def test_streamed_and_whole_answers_are_equal(llava: Path) -> None:
    async with media_server(llava) as served:
        whole = await chat(served, image_part(), words())
        stream = await chat(served, image_part(), words(), stream=True)
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def test_a_second_turn_encodes_nothing_and_hits_the_prefix_cache(llava: Path) -> None:
    async with media_server(llava) as served:
        first = await chat(served, image_part(), words())
        said = first.choices[0].message
        messages = [
            {"role": "user", "content": [image_part(), words()]},
            {"role": "assistant", "content": said.content},
            {"role": "user", "content": "And now?"},
        ]
        second = await chat(served, messages=messages)
        assert await served.encoded() == 1
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens // 16 * 16 - 16 > IMAGE_TOKENS // 2


async def test_choices_share_one_encoded_image(llava: Path) -> None:
    async with media_server(llava) as served:
        answer = await chat(served, image_part(), words(), n=3)
        assert await served.encoded() == 1
    assert len({choice.message.content for choice in answer.choices}) == 1


async def test_a_session_keeps_its_images(llava: Path) -> None:
    async with media_server(llava) as served:
        extra = {"session_id": "s1"}
        first = await chat(served, image_part(), words(), extra_body=extra)
        second = await chat(served, words("And now?"), extra_body=extra)
        assert second.usage.prompt_tokens > first.usage.prompt_tokens
        assert await served.encoded() == 1
        exported = (await served.server.http.get("/v1/sessions/s1")).json()
        assert exported["messages"][0]["content"][0] == {
            "type": "image_url",
            "image_url": {"url": data_url(RED, "image/png")},
        }
        imported = await served.server.http.put("/v1/sessions/s2", json=exported)
        assert imported.status_code == 200
        third = await chat(served, words("And then?"), extra_body={"session_id": "s2"})
        assert third.usage.prompt_tokens > second.usage.prompt_tokens


async def test_stored_conversations_outlive_the_urls_of_their_images(llava: Path) -> None:
    with serving_files(Files()) as pages:
        pages.add("/red.png", RED, "image/png")
        url = f"{pages.url}/red.png"
        async with media_server(llava) as served:
            client, extra = served.server.openai, {"session_id": "s1"}
            part = {"type": "image_url", "image_url": {"url": url}}
            await chat(served, part, words(), extra_body=extra)
            asked: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
            first = await client.responses.create(**PLAIN, max_output_tokens=16, input=asked)
            items = await client.responses.input_items.list(first.id)
            assert items.data[0].content[0].image_url == url
            pages.content.clear()
            again = await chat(served, words("And now?"), extra_body=extra)
            second = await client.responses.create(
                **PLAIN, max_output_tokens=16, input="And now?", previous_response_id=first.id
            )
            with pytest.raises(Exception, match="404"):
                await chat(served, part)
        assert len(pages.requests) == 3
    assert min(again.usage.prompt_tokens, second.usage.input_tokens) > IMAGE_TOKENS


async def test_images_of_chat_tool_messages(llava: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [words("seen"), image_part()]},
    ]
    async with media_server(llava) as served:
        answer = await chat(served, messages=messages)
        assert await served.encoded() == 1
    assert answer.usage.prompt_tokens > IMAGE_TOKENS


async def test_responses_take_images_in_every_form(llava: Path) -> None:
    async with media_server(llava) as served:
        client = served.server.openai
        uploaded = await client.files.create(file=("red.png", RED), purpose="user_data")
        forms: list[dict[str, Any]] = [
            {"type": "input_image", "image_url": data_url(RED), "detail": "auto"},
            {"type": "input_image", "file_id": uploaded.id},
            {"type": "input_image", "image_data": BASE64},
            {"type": "input_file", "file_id": uploaded.id},
            {"type": "input_file", "filename": "red.png", "file_data": data_url(RED)},
            {"type": "image_url", "image_url": {"url": data_url(RED)}},
        ]
        answers = []
        for form in forms:
            content = [form, {"type": "input_text", "text": WORDS}]
            answers.append(
                await client.responses.create(
                    **PLAIN, max_output_tokens=16, input=[{"role": "user", "content": content}]
                )
            )
        assert await served.encoded() == 1
        counted = await client.responses.input_tokens.count(
            model=MODEL, input=[{"role": "user", "content": [forms[0]]}]
        )
    assert len({answer.output_text for answer in answers}) == 1
    assert len({answer.usage.input_tokens for answer in answers}) == 1
    assert IMAGE_TOKENS < counted.input_tokens < answers[0].usage.input_tokens


async def test_a_stored_response_keeps_its_images(llava: Path) -> None:
    async with media_server(llava) as served:
        client = served.server.openai
        image = {"type": "input_image", "image_url": data_url(RED)}
        text = {"type": "input_text", "text": WORDS}
        asked: Any = [{"role": "user", "content": [image, text]}]
        first = await client.responses.create(**PLAIN, max_output_tokens=16, input=asked)
        second = await client.responses.create(
            **PLAIN, max_output_tokens=16, input="And now?", previous_response_id=first.id
        )
        assert second.usage.input_tokens > first.usage.input_tokens
        assert second.usage.input_tokens_details.cached_tokens > 0
        assert await served.encoded() == 1
        items = await client.responses.input_items.list(first.id)
        assert items.data[0].content[0].type == "input_image"
        assert items.data[0].content[0].image_url is None
        items = await client.responses.input_items.list(
            first.id, include=["message.input_image.image_url"]
        )
        assert items.data[0].content[0].image_url == data_url(RED)


async def test_images_of_function_outputs(llava: Path) -> None:
    image = {"type": "input_image", "image_url": data_url(RED)}
    given: Any = [
        {"role": "user", "content": "Look."},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [image]},
    ]
    async with media_server(llava) as served:
        answer = await served.server.openai.responses.create(
            **PLAIN, max_output_tokens=16, input=given
        )
        assert await served.encoded() == 1
    assert answer.usage.input_tokens > IMAGE_TOKENS


async def test_messages_take_images_in_every_form(llava: Path) -> None:
    with serving_files(Files()) as pages:
        pages.add("/red.png", RED, "image/png")
        async with media_server(llava) as served:
            uploaded = await served.server.openai.files.create(
                file=("red.png", RED), purpose="user_data"
            )
            sources: list[dict[str, Any]] = [
                {"type": "base64", "media_type": "image/png", "data": BASE64},
                {"type": "url", "url": f"{pages.url}/red.png"},
                {"type": "file", "file_id": uploaded.id},
            ]
            answers = []
            for source in sources:
                blocks: Any = [{"type": "image", "source": source}, words()]
                messages: Any = [{"role": "user", "content": blocks}]
                answers.append(
                    await served.anthropic.messages.create(
                        model=MODEL, max_tokens=6, messages=messages, extra_body={"temperature": 0}
                    )
                )
                counted = await served.anthropic.messages.count_tokens(
                    model=MODEL, messages=messages
                )
                assert counted.input_tokens == _input_tokens(answers[-1])
            assert await served.encoded() == 1
    assert len({answer.content[0].text for answer in answers}) == 1  # type: ignore[union-attr]
    assert _input_tokens(answers[0]) > IMAGE_TOKENS


def _input_tokens(answer: Any) -> int:
    usage = answer.usage
    return int(usage.input_tokens + (usage.cache_read_input_tokens or 0))


async def test_images_of_tool_results_and_documents(llava: Path) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": BASE64}
    image = {"type": "image", "source": source}
    document = {"type": "document", "source": {"type": "content", "content": [words(), image]}}
    messages: Any = [
        {"role": "user", "content": [document]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [words("seen"), image]},
                words("Go on."),
            ],
        },
    ]
    async with media_server(llava) as served:
        answer = await served.anthropic.messages.create(
            model=MODEL, max_tokens=6, messages=messages
        )
        assert await served.encoded() == 1
    assert _input_tokens(answer) > 2 * IMAGE_TOKENS


async def test_a_text_of_the_user_cannot_stand_in_for_an_image(llava: Path) -> None:
    async with media_server(llava) as served:
        forged = await chat(served, words("<image>\n"), words())
        both = await chat(served, words("<image>\n"), image_part())
        assert await served.encoded() == 1
    assert forged.usage.prompt_tokens < 40
    assert IMAGE_TOKENS < both.usage.prompt_tokens < 2 * IMAGE_TOKENS + 20


async def test_a_long_conversation_drops_turns_with_their_images(llava: Path) -> None:
    turn = [
        {"role": "user", "content": [image_part(), words("x" * 300)]},
        {"role": "assistant", "content": "ok"},
    ]
    messages = [*turn * 4, {"role": "user", "content": [image_part(BLUE), words()]}]
    async with media_server(llava) as served:
        with pytest.raises(Exception, match="prompt is too long") as caught:
            await chat(served, messages=messages)
        assert getattr(caught.value, "code", None) == "context_length_exceeded"
        answer = await chat(served, messages=messages, extra_body={"truncate_sequence": True})
    assert IMAGE_TOKENS < answer.usage.prompt_tokens <= 1024 - 6
