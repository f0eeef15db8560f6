"""Requests and scripted engines for tests of transcription without a model."""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from penstock.dialog import Audio, Event, GenerateRequest, Message, Sampling, Text
from penstock.engine.types import TokenDelta, TokenRequest
from penstock.generation.transcription.transcriber import Transcriber
from penstock.models.media.prepared import PreparedMedia
from penstock.models.tokenizer.tokenizer_data import TextParts, TokenizerFiles
from penstock.models.whisper.folder import whisper_spec
from penstock.models.whisper.spec import WhisperSpec
from tests.support.scripted_engine import INFO, ScriptedEngine


@dataclass(frozen=True)
class Item:
    """A loaded item."""

    media: PreparedMedia


class FixedLoader:
    """Loads recordings of noise. The data of an audio part is its number of frames."""

    def __init__(self, mels: int = 80) -> None:
        self._mels = mels

    async def load(self, request: GenerateRequest) -> Mapping[Any, Item]:
        parts = [p for m in request.messages or () for p in m.parts if isinstance(p, Audio)]
        return {part: Item(features(int(part.data or b"0"), self._mels)) for part in parts}


def features(frames: int, mels: int = 80) -> PreparedMedia:
    """Return the features of a recording of noise."""
    noise = np.random.default_rng(frames).normal(size=(mels, frames))
    return PreparedMedia.of("audio", noise.astype(np.float32))


def recording(frames: int) -> Audio:
    """Return the audio part of a recording of noise."""
    return Audio(data=str(frames).encode())


def request(*frames: int, text: str = "", **fields: Any) -> GenerateRequest:
    """Return a request with recordings of these lengths and a text."""
    parts = tuple(map(recording, frames)) + ((Text(text),) if text else ())
    return GenerateRequest(messages=(Message("user", parts),), **fields)


def text_parts(folder: Path, spec: WhisperSpec) -> TextParts:
    """Return the text parts of a Whisper folder."""
    return TextParts(
        model_id="whisper",
        fingerprint="fp_whisper",
        tokenizer=TokenizerFiles(folder / "tokenizer.json", spec.vocab_size),
        chat_template=None,
        bos_token=None,
        eos_token="<|endoftext|>",
        stop_ids=(spec.tokens.end,),
        generation_defaults=Sampling(),
        max_model_len=spec.max_tokens,
        vocab_size=spec.vocab_size,
    )


class Speech:
    """A transcriber over a scripted engine.

    - `answers`: for each request that decodes, its tokens. Requests for the language are answered
      with `language`, and those for silence with `no_speech`.
    - `decoded`: the requests that decode.
    """

    def __init__(self, folder: Path) -> None:
        self.spec = whisper_spec(folder)
        self.language, self.no_speech = "en", -9.0
        self.answers: list[Sequence[TokenDelta]] = []
        self.decoded: list[TokenRequest] = []
        self.others: list[TokenRequest] = []
        info = msgspec.structs.replace(
            INFO, vocab_size=self.spec.vocab_size, max_model_len=self.spec.max_tokens
        )
        self.engine = _SpeechEngine(self, info)
        self.transcriber = Transcriber.load(
            self.engine, text_parts(folder, self.spec), self.spec, FixedLoader()
        )

    def say(self, *pieces: float | str, logprob: float = -0.1) -> None:
        """Add an answer: numbers are timestamps in seconds, strings are text."""
        first = self.spec.tokens.first_timestamp
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, str):
                ids += self.transcriber.tokenizer.encode(piece)
            else:
                ids.append(first + round(piece / 0.02))
        self.answers.append([TokenDelta(one, logprob) for one in ids])

    def script(self, asked: TokenRequest) -> Sequence[TokenDelta]:
        """Return the answer to a request of the transcriber."""
        tokens = self.spec.tokens
        if asked.token_ids == (tokens.start,) and tokens.languages:
            self.others.append(asked)
            return [TokenDelta(tokens.languages[self.language], -0.1)]
        if asked.max_tokens == 0:
            self.others.append(asked)
            return []
        self.decoded.append(asked)
        return self.answers[len(self.decoded) - 1]


class _SpeechEngine(ScriptedEngine):
    """A scripted engine whose prompts have the log-probability `no_speech`."""

    def __init__(self, speech: Speech, info: Any) -> None:
        super().__init__(speech.script, info=info)
        self._speech = speech

    async def _play(self, request: TokenRequest, steps: Any) -> Any:
        async for output in super()._play(request, steps):
            scored = tuple(
                TokenDelta(one.token_id, self._speech.no_speech) for one in output.prompt
            )
            yield msgspec.structs.replace(output, prompt=scored)


async def all_events(events: AsyncIterable[Event]) -> list[Event]:
    return [event async for event in events]
