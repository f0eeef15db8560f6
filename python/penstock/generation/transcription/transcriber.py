"""Transcribes the recordings of a request, and streams the text as events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock import __version__
from penstock.base.errors import ServiceError
from penstock.dialog import Event, GenerateRequest, RunFailed, RunStarted
from penstock.engine.protocol import Engine
from penstock.generation.transcription.answer import TranscriptAnswer
from penstock.generation.transcription.instructions import TranscriptionRequest, read_request
from penstock.generation.transcription.recording import RecordingTranscript, SpokenSegment
from penstock.generation.transcription.segments import FRAMES_PER_TIMESTAMP
from penstock.generation.transcription.window_decoder import TEMPERATURES, WindowDecoder
from penstock.models.loader.sampling_defaults import SamplingDefaults
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.models.whisper.spec import WhisperSpec
from penstock.text import IncrementalDetokenizer, Tokenizer, load_tokenizer

Floats = npt.NDArray[np.float32]


class LoadedRecording(Protocol):
    """The field of a loaded item that this module uses."""

    @property
    def media(self) -> PreparedMedia: ...


class RecordingLoader(Protocol):
    """The method of `generation.media.MediaLoader` that this module uses."""

    async def load(self, request: GenerateRequest) -> Mapping[Any, LoadedRecording]:
        """Return the items of a request by their parts. Raises ServiceError."""
        ...


class Transcriber:
    """Transcribes speech with one Whisper model. Has the interface of `Generator`.

    - `spec`: the model's configuration.
    - `loader`: loads the recordings of requests.
    """

    def __init__(
        self, engine: Engine, tokenizer: Tokenizer, spec: WhisperSpec, loader: RecordingLoader
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._spec = spec
        self._loader = loader
        self.sampling_defaults: SamplingDefaults | None = None

    @classmethod
    def load(
        cls, engine: Engine, parts: TextParts, spec: WhisperSpec, loader: RecordingLoader
    ) -> Transcriber:
        """Make the transcriber of a loaded engine. Raises ModelError if the tokenizer cannot be
        used."""
        return cls(engine, load_tokenizer(parts), spec, loader)

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def media_kinds(self) -> tuple[MediaKind, ...]:
        """The kinds of media that the model reads."""
        return ("audio",)

    def close(self) -> None:
        """Do nothing: a transcriber has no child processes."""

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of one request, from RunStarted, once the engine has admitted it, to
        RunEnded.

        An error that a client or an operator caused becomes the last event, RunFailed. Closing the
        generator early aborts the transcript.
        """
        try:
            wanted = read_request(request, self._spec.tokens.languages)
            recordings = await self._load(wanted)
            async with aclosing(self._events(wanted, recordings)) as events:
                async for event in events:
                    yield event
        except ServiceError as error:
            yield RunFailed.of(error)

    async def count(self, request: GenerateRequest) -> int:
        """Return the number of tokens in the prompt of a request: 50 per second of its recordings,
        and those of the text before them. Raises ServiceError."""
        wanted = read_request(request, self._spec.tokens.languages)
        return self._num_prompt_tokens(wanted, await self._load(wanted))

    async def _events(
        self, wanted: TranscriptionRequest, recordings: list[Floats]
    ) -> AsyncGenerator[Event, None]:
        request, sampling = wanted.request, wanted.request.sampling
        prompt_tokens = self._num_prompt_tokens(wanted, recordings)
        answer = TranscriptAnswer(prompt_tokens, request.stop)
        temperatures = (sampling.temperature,) if sampling.temperature else TEMPERATURES
        decoder = WindowDecoder(
            *(self._engine, self._tokenizer, self._spec.tokens, temperatures),
            *(sampling.seed or 0, request.cache_salt.encode()),
        )
        started = self._started(request.model, prompt_tokens)
        num_tokens, is_cut, is_started = 0, False, False
        for number, features in enumerate(recordings):
            transcript = RecordingTranscript(
                *(self._spec, self._tokenizer, decoder, wanted.instructions),
                *(features, self._initial(wanted)),
            )
            most = request.limits.max_tokens
            limit = None if most is None else most - num_tokens
            written = _Writer(self._tokenizer, "\n" if number else "", wanted)
            async with aclosing(transcript.segments(limit)) as segments:
                async for segment in segments:
                    if not is_started:
                        is_started = True
                        yield started
                    for event in answer.say(written.text(segment)):
                        yield event
                    if answer.is_stopped:
                        break
            num_tokens, is_cut = num_tokens + transcript.num_tokens, transcript.is_cut
            if is_cut or answer.is_stopped:
                break
        if not is_started:  # nothing was said
            yield started
        for event in answer.end(num_tokens, is_cut=is_cut):
            yield event

    async def _load(self, wanted: TranscriptionRequest) -> list[Floats]:
        """Return the features of the recordings, [mels, frames] each."""
        loaded = await self._loader.load(wanted.request)
        return [loaded[part].media.array() for part in wanted.recordings]

    def _num_prompt_tokens(self, wanted: TranscriptionRequest, recordings: list[Floats]) -> int:
        positions: int = sum(-(-one.shape[1] // FRAMES_PER_TIMESTAMP) for one in recordings)
        return positions + len(self._initial(wanted))

    def _initial(self, wanted: TranscriptionRequest) -> list[int]:
        """Return the tokens of the text before each recording."""
        prompt = wanted.instructions.prompt.strip()
        return self._tokenizer.encode(f" {prompt}") if prompt else []

    def _started(self, model: str | None, prompt_tokens: int) -> RunStarted:
        info = self._engine.info
        return RunStarted(
            model=model or info.model_id,
            created=int(time.time()),
            prompt_tokens=prompt_tokens,
            fingerprint=f"penstock-{__version__}-{info.fingerprint}",
        )


class _Writer:
    """Writes the segments of one recording. `separator`: text before the first segment."""

    def __init__(self, tokenizer: Tokenizer, separator: str, wanted: TranscriptionRequest) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._separator = separator
        self._is_first = True
        self._timed = wanted.instructions.timestamps

    def text(self, segment: SpokenSegment) -> str:
        """Return the text that a segment adds to the answer."""
        text = self._detokenizer.push_all(segment.text_ids)
        if self._timed:
            text = f"[{_clock(segment.start_s)} --> {_clock(segment.end_s)}] {text.strip()}"
            separator, self._separator = self._separator, "\n"
            return separator + text
        if self._is_first:
            self._is_first = False
            return self._separator + text.lstrip()
        return text


def _clock(seconds: float) -> str:
    """Return a time as minutes and seconds, "00:02.500"."""
    return f"{int(seconds // 60):02d}:{seconds % 60:06.3f}"
