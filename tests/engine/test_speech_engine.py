"""A speech engine: turns, aborts, faults, its own process, and the models that it loads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import InvalidRequest, ModelError, Overloaded
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.ipc.client import EngineClient, RefusedRequest
from penstock.engine.load import load_core
from penstock.engine.media_core import MediaCore
from penstock.engine.processes.fleet import EngineFleet
from penstock.engine.speech_maker import SpeechMaker, pcm
from penstock.engine.types import (
    AdapterSource,
    EmbedRequest,
    ImageRequest,
    SpeechOutput,
    SpeechRequest,
    TokenRequest,
)
from tests.support.speech.onnx_files import SAMPLES_PER_TOKEN, write_kokoro
from tests.support.speech.tone_speaker import BROKEN, OUT_OF_RANGE, SILENT, ToneSpeaker


def core_of(speaker: ToneSpeaker, max_queue: int = 8) -> MediaCore:
    return MediaCore(SpeechMaker(speaker), max_queue)


def run(core: MediaCore) -> list[SpeechOutput]:
    outputs = []
    while core.has_work:
        outputs += core.step()
    return outputs


def test_requests_take_turns_by_sentence() -> None:
    core = core_of(ToneSpeaker())
    core.speak(SpeechRequest("long", ("a", "b", "c")))
    core.speak(SpeechRequest("short", ("d",)))
    outputs = run(core)
    assert [one.id for one in outputs] == ["long", "short", "long", "long"]
    assert [one.finish for one in outputs] == [None, "stop", None, "stop"]
    assert core.gauges().completed_stop == 2


def test_silent_sentences_are_left_out_and_a_silent_text_is_refused() -> None:
    core = core_of(ToneSpeaker())
    core.speak(SpeechRequest("a", (SILENT, "x", SILENT)))
    assert [one.finish for one in run(core)] == ["stop"]
    with pytest.raises(InvalidRequest) as caught:
        core.speak(SpeechRequest("b", (SILENT,)))
    assert caught.value.code == "unpronounceable_input"
    assert not core.has_work


@pytest.mark.parametrize("broken", [BROKEN, OUT_OF_RANGE])
def test_a_failing_sentence_ends_only_its_request(broken: str) -> None:
    core = core_of(ToneSpeaker())
    core.speak(SpeechRequest("bad", ("a", broken, "never")))
    core.speak(SpeechRequest("good", ("b", "c")))
    outputs = run(core)
    assert {one.id: one.finish for one in outputs} == {"bad": "error", "good": "stop"}
    (failed,) = (one for one in outputs if one.finish == "error")
    assert failed.error == "the model failed at this request"
    assert core.gauges().completed_error == 1


def test_an_aborted_request_is_not_spoken() -> None:
    speaker = ToneSpeaker()
    core = core_of(speaker)
    core.speak(SpeechRequest("a", ("a", "b")))
    core.step()
    core.abort("a")
    core.abort("unknown")
    assert not core.has_work
    assert speaker.spoken == [(1,)]
    assert core.gauges().completed_abort == 1


def test_a_full_queue_refuses() -> None:
    core = core_of(ToneSpeaker(), max_queue=1)
    core.speak(SpeechRequest("a", ("a",)))
    with pytest.raises(Overloaded):
        core.speak(SpeechRequest("b", ("b",)))
    assert core.gauges().sequences_running == 1


def test_other_requests_are_refused_by_name() -> None:
    core = core_of(ToneSpeaker())
    with pytest.raises(InvalidRequest, match="writes no text"):
        core.submit(TokenRequest("t", (1,), Sampling(), 0, 5))
    with pytest.raises(InvalidRequest, match="makes no embeddings"):
        core.embed(EmbedRequest("e", ((1,),)))
    with pytest.raises(InvalidRequest, match="makes no images"):
        core.paint(ImageRequest("p", "a cat", 8, 8, 0))
    with pytest.raises(AdapterRefused):
        core.add_adapter(AdapterSource("r", "/nowhere")).result()


def test_loud_samples_are_cut_off() -> None:
    samples = np.array([2.0, -2.0, 0.5, 0.0], np.float32)
    assert np.frombuffer(pcm(samples), "<i2").tolist() == [32767, -32767, 16384, 0]


@pytest.fixture(scope="module")
def kokoro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("phonemizer")
    return write_kokoro(tmp_path_factory.mktemp("kokoro"))


def test_a_kokoro_folder_is_loaded_as_a_speech_model(kokoro: Path) -> None:
    core = load_core(EngineSettings(model=str(kokoro), threads=1))
    assert core.info.sample_rate == 24000
    assert core.info.voices == ("af_heart", "am_echo", "bf_emma")
    assert "voices" in core.report
    core.speak(SpeechRequest("a", ("Hello there.",)))
    (output,) = core.step()
    assert isinstance(output, SpeechOutput)
    assert len(output.audio) % (2 * SAMPLES_PER_TOKEN) == 0 < len(output.audio)
    core.close()


def test_a_model_that_does_not_fit_is_refused(kokoro: Path) -> None:
    with pytest.raises(ModelError, match="does not fit"):
        load_core(EngineSettings(model=str(kokoro)), limit_bytes=1000)


async def test_a_speech_model_runs_in_its_own_process(kokoro: Path) -> None:
    fleet = EngineFleet({"voice": EngineSettings(model=str(kokoro), threads=1)})
    client = None
    try:
        await fleet.start(["voice"])
        await fleet.load("voice")
        client = EngineClient(fleet.socket_path("voice"))
        info = await client.wait_ready()
        assert info.voices[0] == "af_heart"

        async def speak(name: str) -> list[SpeechOutput]:
            request = SpeechRequest(name, ("Hello there.", "Good bye!"), "am_echo")
            return [one async for one in client.speak(request)]

        first, second = await asyncio.gather(speak("a"), speak("b"))
        assert [one.finish for one in first] == [None, "stop"]
        assert [one.audio for one in first] == [one.audio for one in second]
        with pytest.raises(RefusedRequest, match="nothing that this voice can pronounce"):
            [one async for one in client.speak(SpeechRequest("c", ("...",)))]
        with pytest.raises(RefusedRequest, match="makes no images"):
            [one async for one in client.paint(ImageRequest("p", "a cat", 8, 8, 0))]
    finally:
        if client is not None:
            await client.close()
        await fleet.stop()
