"""Makes the speech of requests with a loaded speech model, one piece per step."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from penstock.base.errors import InvalidRequest
from penstock.engine.types import EngineInfo, SpeechOutput, SpeechRequest
from penstock.runtime.speech.speaker import Samples, Speaker, Tokens

LARGEST_SAMPLE = 32767


class SpeechMaker:
    """Speaks the sentences of requests with one model. `info`: describes the engine."""

    def __init__(self, speaker: Speaker) -> None:
        facts = speaker.info
        self._speaker = speaker
        self.report = speaker.report
        self.info = EngineInfo(
            model_id=facts.model_id,
            max_model_len=0,
            vocab_size=0,
            max_num_seqs=1,
            cache_blocks=0,
            block_size=0,
            weight_bytes=facts.weight_bytes,
            fingerprint=facts.fingerprint,
            memory_bytes=facts.memory_bytes,
            sample_rate=facts.sample_rate,
            voices=facts.voices,
        )

    def start(self, request: SpeechRequest) -> Generator[SpeechOutput, None, None]:
        """Return the steps of a request: each one speaks a piece of a sentence. Raises
        InvalidRequest (`unpronounceable_input`) if the voice cannot pronounce any of the text."""
        pieces = self._pieces(request)
        first = next(pieces, None)
        if first is None:
            raise InvalidRequest(
                "`input` has nothing that this voice can pronounce; send words in its language",
                field="input",
                code="unpronounceable_input",
            )
        return self._steps(request, first, pieces)

    def failure(self, request_id: str, reason: str) -> SpeechOutput:
        """Return the last output of a request that has failed."""
        return SpeechOutput(request_id, b"", "error", reason)

    def close(self) -> None:
        """Free the model's memory."""
        self._speaker.close()

    def _pieces(self, request: SpeechRequest) -> Iterator[Tokens]:
        for sentence in request.sentences:
            yield from self._speaker.pieces(sentence, request.voice)

    def _steps(
        self, request: SpeechRequest, piece: Tokens, later: Iterator[Tokens]
    ) -> Generator[SpeechOutput, None, None]:
        while True:
            audio = pcm(self._speaker.speak(piece, request.voice, request.speed))
            following = next(later, None)
            if following is None:
                yield SpeechOutput(request.id, audio, "stop")
                return
            yield SpeechOutput(request.id, audio)
            piece = following


def pcm(samples: Samples) -> bytes:
    """Return samples from -1 to 1 as signed 16-bit little-endian numbers. Louder samples are cut
    off."""
    scaled = np.clip(samples, -1.0, 1.0) * LARGEST_SAMPLE
    return np.rint(scaled).astype("<i2").tobytes()
