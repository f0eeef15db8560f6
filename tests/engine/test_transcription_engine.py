"""Whisper in an engine: several transcripts at the same time, encoded windows, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.dialog import GenerateRequest, RunEnded, TextDelta
from penstock.engine.load import load_core
from penstock.engine.local import LocalEngine
from penstock.generation.transcription.transcriber import Transcriber
from penstock.models.whisper.folder import whisper_spec
from tests.support.speech.scripted_speech import FixedLoader, all_events, request, text_parts
from tests.support.speech.whisper_folders import random_whisper


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[LocalEngine]:
    settings = EngineSettings(model=str(folder), threads=2, max_num_seqs=3)
    started = await LocalEngine.start(settings)
    yield started
    await started.close()


def transcriber(engine: LocalEngine, folder: Path) -> Transcriber:
    spec = whisper_spec(folder)
    return Transcriber.load(engine, text_parts(folder, spec), spec, FixedLoader())


async def transcript(speech: Transcriber, asked: GenerateRequest) -> tuple[str, int]:
    """Return the text of a transcript and the number of its tokens."""
    events = await all_events(speech.run(asked))
    ended = events[-1]
    assert isinstance(ended, RunEnded), ended
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    return "".join(texts), ended.usage.completion_tokens


async def test_transcripts_at_the_same_time_are_those_alone(
    engine: LocalEngine, folder: Path
) -> None:
    speech = transcriber(engine, folder)
    asked = [request(frames) for frames in (400, 900, 3100, 250, 700)]
    alone = [await transcript(speech, one) for one in asked]
    together = await asyncio.gather(*(transcript(speech, one) for one in asked))
    assert list(together) == alone
    assert all(tokens > 0 for _, tokens in alone)


async def test_window_is_encoded_once(engine: LocalEngine, folder: Path) -> None:
    speech = transcriber(engine, folder)
    await transcript(speech, request(500))
    first = await engine.gauges()
    await transcript(speech, request(500, text="language: de"))
    second = await engine.gauges()
    assert first.media_items_encoded == second.media_items_encoded == 1
    assert second.encoder_cache_hits > first.encoder_cache_hits


async def test_engine_describes_its_model(engine: LocalEngine) -> None:
    assert engine.info.media_kinds == ("audio",)
    assert engine.info.max_model_len == 448
    assert "encoder cache" in engine.report


def test_model_that_does_not_fit_is_refused_with_numbers(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"does not fit: .* MiB are available"):
        load_core(EngineSettings(model=str(folder)), limit_bytes=64 << 20)


def test_speculation_is_refused(folder: Path) -> None:
    settings = EngineSettings(model=str(folder), speculative_algorithm="ngram")
    with pytest.raises(ModelError, match="speculative_algorithm"):
        load_core(settings)


@pytest.mark.parametrize("cache", ["int8", "f8e4m3"])
def test_an_8_bit_cache_is_refused_by_name(folder: Path, cache: str) -> None:
    settings = EngineSettings(model=str(folder), threads=2, kv_cache_dtype=cache)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=f"kv_cache_dtype is {cache}; for Whisper"):
        load_core(settings)


async def test_quantized_model_transcribes(folder: Path) -> None:
    settings = EngineSettings(model=str(folder), threads=2, quantization="int8")
    engine = await LocalEngine.start(settings)
    text, tokens = await transcript(transcriber(engine, folder), request(400))
    await engine.close()
    assert text and tokens > 0
