"""Recordings through the official clients, over real models that hear, with decoding processes."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from tests.support.checkpoints.small_hearing import FAMILIES, HearingFamily, write_small_hearing
from tests.support.media_files import sound_file, tone
from tests.support.servers.file_server import Files
from tests.support.servers.file_server import serving as serving_files
from tests.support.servers.http_server import MODEL
from tests.support.servers.media_server import MediaServing, data_url, media_server
from tests.support.speech.audio_models import CASES, RATE, sound

TOKENS = 8
WORDS: dict[str, Any] = {"type": "text", "text": "What is said?"}
SAMPLES = 20_000
NOISE = (sound(SAMPLES) * 32_767).round().clip(-32_768, 32_767).astype(np.int16) / np.float32(32768)
SPEECH = sound_file(NOISE, RATE, "wav_s16")
TONE = sound_file(tone(RATE, 2.0), RATE, "wav_s16")


@dataclass(frozen=True)
class Hearing:
    """A model on disk that hears."""

    folder: Path
    family: HearingFamily


@pytest.fixture(scope="module", params=list(FAMILIES))
def hearing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hearing:
    family = FAMILIES[request.param]
    return Hearing(write_small_hearing(tmp_path_factory.mktemp(request.param), family), family)


def audio(data: bytes = SPEECH) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}


async def chat(served: MediaServing, *content: dict[str, Any], **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": list(content)}]
    fields = {"messages": messages, "max_tokens": TOKENS, **fields}
    return await served.server.openai.chat.completions.create(model=MODEL, temperature=0, **fields)


@torch.inference_mode()
def answer_of_transformers(hearing: Hearing, samples: np.ndarray) -> tuple[int, list[bytes]]:
    """Return the number of prompt tokens and the bytes of each token of the greedy answer of
    transformers to a recording and WORDS."""
    name = hearing.family.name
    case = next(case for case in CASES.values() if case.name == name)
    model = getattr(transformers, f"{name}ForConditionalGeneration").from_pretrained(hearing.folder)
    heard = case.hears(samples)
    rows = hearing.family.tokens[0] * heard.rows
    prompts = {
        "Qwen2Audio": f"<|im_start|>user\nAudio 1: <|audio_bos|>{rows}<|audio_eos|>\n"
        f"{WORDS['text']}<|im_end|>\n<|im_start|>assistant\n",
        "Voxtral": f"[INST][BEGIN_AUDIO]{rows}{WORDS['text']}[/INST]",
    }
    tokenizer = Tokenizer.from_file(str(hearing.folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(prompts[name]).ids])
    made = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        **heard.inputs,
    )[0, ids.shape[1] :]
    return ids.shape[1], [bytes_of_token(tokenizer, int(token)) for token in made]


def bytes_of_token(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token of the tiny vocabulary."""
    return bytes([token]) if token < 256 else str(tokenizer.id_to_token(token)).encode()


async def test_answers_are_those_of_transformers(hearing: Hearing) -> None:
    prompt_tokens, expected = answer_of_transformers(hearing, NOISE)
    async with media_server(hearing.folder) as served:
        assert served.engine.info.media_kinds == ("audio",)
        answer = await chat(served, audio(), WORDS, logprobs=True)
    given = [bytes(token.bytes) for token in answer.choices[0].logprobs.content]
    assert answer.usage.prompt_tokens == prompt_tokens
    assert len(given) == TOKENS
    assert given == expected


async def test_chat_takes_recordings_in_every_form(hearing: Hearing) -> None:
    url = data_url(SPEECH, "audio/wav")
    with serving_files(Files()) as pages:
        pages.add("/talk.wav", SPEECH, "audio/wav")
        async with media_server(hearing.folder) as served:
            uploaded = await served.server.openai.files.create(
                file=("talk.wav", SPEECH), purpose="user_data"
            )
            forms: list[dict[str, Any]] = [
                audio(),
                {"type": "audio_url", "audio_url": {"url": url}},
                {"type": "audio_url", "audio_url": url},
                {"type": "audio_url", "audio_url": {"url": f"{pages.url}/talk.wav"}},
                {"type": "file", "file": {"filename": "talk.wav", "file_data": url}},
                {"type": "file", "file": {"file_id": uploaded.id}},
            ]
            answers = [await chat(served, form, WORDS) for form in forms]
            assert await served.encoded() == 1
    first = answers[0]
    assert first.choices[0].message.content
    for answer in answers[1:]:
        assert answer.choices[0].message == first.choices[0].message
        assert answer.usage.prompt_tokens == first.usage.prompt_tokens


async def test_formats_and_sampling_rates_do_not_change_the_number_of_tokens(
    hearing: Hearing,
) -> None:
    recordings = [
        sound_file(tone(RATE, 2.0), RATE, "wav_s16", channels=2),
        sound_file(tone(48_000, 2.0), 48_000, "wav_s16"),
        sound_file(tone(RATE, 2.0), RATE, "flac"),
    ]
    async with media_server(hearing.folder) as served:
        expected = await chat(served, audio(TONE), WORDS)
        answers = [await chat(served, audio(one), WORDS) for one in recordings]
    for answer in answers:
        assert answer.usage.prompt_tokens == expected.usage.prompt_tokens
    stereo, _, flac = answers
    assert stereo.choices[0].message == flac.choices[0].message == expected.choices[0].message


async def test_the_answer_depends_on_the_recordings_and_their_order(hearing: Hearing) -> None:
    async with media_server(hearing.folder) as served:
        contents = [
            (audio(), WORDS),
            (audio(TONE), WORDS),
            (WORDS, audio()),
            (audio(), audio(TONE), WORDS),
            (audio(TONE), audio(), WORDS),
        ]
        answers = [await chat(served, *content, logprobs=True) for content in contents]
        assert await served.encoded() == 2
    logprobs = {
        tuple(round(token.logprob, 4) for token in answer.choices[0].logprobs.content)
        for answer in answers
    }
    assert len(logprobs) == len(contents)


async def test_streamed_and_whole_answers_are_equal(hearing: Hearing) -> None:
    async with media_server(hearing.folder) as served:
        whole = await chat(served, audio(), WORDS)
        stream = await chat(served, audio(), WORDS, stream=True)
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content


async def test_a_second_turn_encodes_nothing_and_hits_the_prefix_cache(hearing: Hearing) -> None:
    async with media_server(hearing.folder) as served:
        first = await chat(served, audio(TONE), WORDS)
        messages: Any = [
            {"role": "user", "content": [audio(TONE), WORDS]},
            {"role": "assistant", "content": first.choices[0].message.content},
            {"role": "user", "content": "And then?"},
        ]
        second = await chat(served, messages=messages)
        assert await served.encoded() == 1
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens // 16 * 16 - 16 > 16


async def test_responses_take_recordings(hearing: Hearing) -> None:
    encoded = base64.b64encode(SPEECH).decode()
    words = {"type": "input_text", "text": WORDS["text"]}
    forms = [
        audio(),
        {"type": "input_audio", "data": encoded, "format": "wav"},
        {
            "type": "input_file",
            "filename": "talk.wav",
            "file_data": data_url(SPEECH, "audio/wav"),
        },
    ]
    async with media_server(hearing.folder) as served:
        client, answers = served.server.openai, []
        for form in forms:
            given: Any = [{"role": "user", "content": [form, words]}]
            answers.append(
                await client.responses.create(
                    model=MODEL, temperature=0, max_output_tokens=16, input=given
                )
            )
        counted = await client.responses.input_tokens.count(
            model=MODEL, input=[{"role": "user", "content": [forms[0], words]}]
        )
        assert await served.encoded() == 1
    assert len({answer.output_text for answer in answers}) == 1
    assert {answer.usage.input_tokens for answer in answers} == {counted.input_tokens}


async def test_messages_take_recordings_as_documents_of_uploaded_files(hearing: Hearing) -> None:
    """The Messages API has no audio block: a recording is an uploaded file."""
    async with media_server(hearing.folder) as served:
        uploaded = await served.server.openai.files.create(
            file=("talk.wav", SPEECH), purpose="user_data"
        )
        block = {"type": "document", "source": {"type": "file", "file_id": uploaded.id}}
        given: Any = [{"role": "user", "content": [block, WORDS]}]
        answer = await served.anthropic.messages.create(
            model=MODEL, max_tokens=TOKENS, messages=given, extra_body={"temperature": 0}
        )
        asked = await chat(served, {"type": "file", "file": {"file_id": uploaded.id}}, WORDS)
        assert await served.encoded() == 1
    assert answer.usage.input_tokens == asked.usage.prompt_tokens
    assert answer.content[0].type == "text"
    assert answer.content[0].text == asked.choices[0].message.content


async def test_images_and_damaged_recordings_are_refused_by_their_place(hearing: Hearing) -> None:
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": data_url(b"\x89PNG")}}
    async with media_server(hearing.folder) as served:
        with pytest.raises(openai.BadRequestError, match="reads text and audio, no images") as seen:
            await chat(served, WORDS, image)
        with pytest.raises(openai.BadRequestError) as heard:
            await chat(served, WORDS, audio(SPEECH[:40]))
        assert (await chat(served, audio(), WORDS)).choices
    assert seen.value.param == "messages[0].content[1].image_url"
    assert heard.value.code == "invalid_audio"
    assert heard.value.param is not None
    assert heard.value.param.startswith("messages[0].content[1].input_audio")
