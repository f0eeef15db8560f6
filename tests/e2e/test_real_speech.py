"""Speech of real voices is transcribed by a real Whisper to the same words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.llm import LLM
from tests.support.speech.whisper_transcripts import Transcriber

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "I have seen beautiful little rivers near the bottom of the mountain. They flow to the sea.",
)


@pytest.fixture(scope="module")
def transcriber(pytestconfig: pytest.Config) -> Transcriber:
    value = pytestconfig.getoption("--weights-dir")
    folder = Path(value or "") / "whisper_tiny_en"
    if not value or not (folder / "gpt2.tiktoken").exists():
        pytest.skip("needs --weights-dir with whisper_tiny_en (tiny.en.pt, gpt2.tiktoken)")
    return Transcriber(folder)


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.parametrize(
    ("folder", "voice"), [("piper", ""), ("kokoro", "af_heart"), ("kokoro", "george")]
)
def test_speech_is_transcribed_to_its_words(
    weights_dir: Path, transcriber: Transcriber, folder: str, voice: str
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("phonemizer")
    if not (weights_dir / folder).is_dir():
        pytest.skip(f"needs {folder} in --weights-dir")
    with LLM(weights_dir / folder) as model:
        for text in TEXTS:
            speech = model.speak(text, voice)
            samples = np.frombuffer(speech.audio, "<i2").astype(np.float32) / 32768
            words = "".join(c for c in text.lower() if c.isalpha() or c == " ").split()
            assert transcriber.words(samples, speech.sample_rate) == words
