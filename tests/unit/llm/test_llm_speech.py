"""Speech in embedded use, with a small ONNX model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.base.errors import InvalidRequest
from penstock.llm import LLM
from tests.support.speech.onnx_files import write_piper

pytest.importorskip("onnxruntime")
pytest.importorskip("phonemizer")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(write_piper(tmp_path_factory.mktemp("piper")), threads=1) as llm:
        yield llm


def test_speech_is_the_sound_of_all_sentences(llm: LLM) -> None:
    one, two = llm.speak("Cats sleep."), llm.speak("Dogs bark!")
    assert one.sample_rate == 16000
    assert llm.speak("Cats sleep. Dogs bark!").audio == one.audio + two.audio


async def test_speech_from_asyncio_is_the_same(llm: LLM) -> None:
    assert await llm.aspeak("Cats sleep.", speed=2) == llm.speak("Cats sleep.", speed=2)


def test_invalid_speech_arguments_are_refused(llm: LLM) -> None:
    for text, speed in (("", 1), ("...", 1), ("Cats", 0), ("Cats", 4.5), ("a" * 32769, 1)):
        with pytest.raises(InvalidRequest):
            llm.speak(text, speed=speed)
    with pytest.raises(InvalidRequest):
        llm.speak(5)  # type: ignore[arg-type]


def test_other_work_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="makes speech and does nothing else"):
        llm.chat([{"role": "user", "content": "hi"}])
    with pytest.raises(InvalidRequest, match="makes speech and does nothing else"):
        llm.embed("hi")
