"""Real Whisper weights: the states and tokens of transformers, and the words of recordings."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from penstock.config import EngineSettings
from penstock.dialog import Audio, GenerateRequest, Message, RunEnded, TextDelta
from penstock.engine.local import LocalEngine
from penstock.generation.transcription.transcriber import Transcriber
from penstock.models.media.prepared import Sound
from penstock.models.whisper.folder import whisper_spec
from penstock.models.whisper.processor import WhisperProcessor
from tests.support.speech.real_whisper import ctranslate2_folder, openai_folder
from tests.support.speech.scripted_speech import Item, all_events, text_parts
from tests.support.speech.window_decoding import decode, encode, start_runtime

pytestmark = [pytest.mark.weights, pytest.mark.slow]

RATE = 16_000
SAID = 30
# The recordings of Debian's pocketsphinx-testdata.
LIBRIVOX = {
    "0870": "and mister john dashwood had then leisure to consider how much there might be"
    " prudently in his power to do for them",
    "0890": "unless to be rather cold hearted and rather selfish is to be ill disposed",
    "0920": "had he married a more amiable woman he might have been made still more respectable"
    " than he was",
    "0930": "he might even have been made amiable himself",
}
MOST_ERRORS = {"whisper_tiny_en": 0.03, "whisper_base": 0.02}


@pytest.fixture(scope="module", params=["whisper_tiny_en", "whisper_base"])
def folder(
    request: pytest.FixtureRequest, weights_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    name = str(request.param)
    source = weights_dir / name
    needed = "gpt2.tiktoken" if name == "whisper_tiny_en" else "model.bin"
    if not (source / needed).exists():
        pytest.skip(f"needs {name}/{needed} in --weights-dir")
    made = tmp_path_factory.mktemp("real") / name
    made.mkdir()
    convert = openai_folder if name == "whisper_tiny_en" else ctranslate2_folder
    return convert(source, made)


@pytest.fixture(scope="module")
def recordings(weights_dir: Path) -> dict[str, np.ndarray]:
    soundfile = pytest.importorskip("soundfile")
    folder = weights_dir / "speech_audio" / "librivox"
    if not folder.exists():
        pytest.skip("needs speech_audio/librivox in --weights-dir")
    stem = "sense_and_sensibility_01_austen_64kb"
    return {
        name: soundfile.read(folder / f"{stem}-{name}.wav", dtype="float32")[0] for name in LIBRIVOX
    }


def words(text: str) -> list[str]:
    plain = text.lower().replace("mr.", "mister")
    return re.sub(r"[^a-z0-9' ]", " ", plain).split()


def errors(expected: list[str], heard: list[str]) -> int:
    """Return the number of words to replace, insert or delete."""
    row = list(range(len(heard) + 1))
    for index, word in enumerate(expected, 1):
        before, row[0] = row[0], index
        for place, other in enumerate(heard, 1):
            least = min(row[place] + 1, row[place - 1] + 1, before + (word != other))
            before, row[place] = row[place], least
    return row[-1]


def test_states_and_tokens_are_those_of_transformers(
    folder: Path, recordings: dict[str, np.ndarray]
) -> None:
    spec = whisper_spec(folder)
    tokens = spec.tokens
    processor = WhisperProcessor(spec.encoder.mels, spec.encoder.frames)
    window = processor.window(processor.audio(Sound(recordings["0870"], RATE)).array(), 0)
    runtime = start_runtime(folder, dtype="f32")
    rows = encode(runtime, window)
    model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = [*tokens.opening("en", tokens.transcribe), tokens.no_timestamps]
    said = list(prompt)
    with torch.inference_mode():
        encoded = model.model.encoder(torch.from_numpy(window.array().copy())[None])
        for _ in range(SAID):
            scores = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([said])).logits
            last = scores[0, -1]
            last[[*tokens.suppressed, tokens.no_timestamps]] = -torch.inf
            if len(said) == len(prompt):
                last[list(tokens.suppressed_first)] = -torch.inf
            said.append(int(last.argmax()))
    states = encoded.last_hidden_state[0].numpy()
    assert np.abs(rows - states).max() <= 1e-4 * np.abs(states).max()
    assert decode(runtime, [window], [prompt], SAID) == [said[len(prompt) :]]


async def test_word_error_rate_is_that_of_the_reference_implementation(
    folder: Path, recordings: dict[str, np.ndarray]
) -> None:
    spec = whisper_spec(folder)
    processor = WhisperProcessor(spec.encoder.mels, spec.encoder.frames)

    class Loader:
        async def load(self, request: GenerateRequest) -> Mapping[Any, Item]:
            (part,) = (request.messages or ())[0].parts
            assert isinstance(part, Audio)
            return {part: Item(processor.audio(Sound(recordings[str(part.url)], RATE)))}

    engine = await LocalEngine.start(EngineSettings(model=str(folder)))
    speech = Transcriber.load(engine, text_parts(folder, spec), spec, Loader())

    async def heard(name: str) -> str:
        asked = GenerateRequest(messages=(Message("user", (Audio(url=name),)),))
        events = await all_events(speech.run(asked))
        assert isinstance(events[-1], RunEnded)
        return "".join(event.text for event in events if isinstance(event, TextDelta))

    texts = await asyncio.gather(*map(heard, LIBRIVOX))
    await engine.close()
    pairs = [
        (words(LIBRIVOX[name]), words(text)) for name, text in zip(LIBRIVOX, texts, strict=True)
    ]
    wrong = sum(errors(expected, found) for expected, found in pairs)
    assert wrong <= MOST_ERRORS[folder.name] * sum(len(expected) for expected, _ in pairs)
