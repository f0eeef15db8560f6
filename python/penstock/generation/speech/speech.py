"""Runs requests for speech: splits the text and collects the sound of its sentences."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from penstock.base.errors import EngineFault, InvalidRequest
from penstock.base.ids import new_id
from penstock.dialog import SpeechPiece, TextToSpeechRequest
from penstock.dialog.ranges import MAX_SPEECH_CHARS, MAX_SPEED, MIN_SPEED
from penstock.engine.protocol import Engine
from penstock.engine.types import SpeechRequest
from penstock.text.sentences import sentences


class SpeechRunner:
    """Runs the speech requests of one model. To be called from the engine's asyncio loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def speak(self, request: TextToSpeechRequest) -> AsyncGenerator[SpeechPiece, None]:
        """Yield the speech of a text, sentence by sentence. Closing the generator drops the
        sentences that are not spoken yet.

        Raises InvalidRequest (`unpronounceable_input` for a text without sounds), and the engine's
        errors: Overloaded, Unavailable, EngineFault.
        """
        _check(request)
        order = SpeechRequest(
            new_id("speech_"), tuple(sentences(request.text)), request.voice, request.speed
        )
        rate = self._engine.info.sample_rate
        # `speak` is declared as AsyncIterator, but every engine returns a generator: aclose()
        # aborts it.
        async with aclosing(self._engine.speak(order)) as outputs:  # type: ignore[type-var]
            async for output in outputs:
                if output.finish == "error":
                    raise EngineFault(output.error or "the engine failed this request")
                yield SpeechPiece(output.audio, rate)


def _check(request: TextToSpeechRequest) -> None:
    if not request.text.strip():
        raise InvalidRequest("`input` must be a text to speak, not empty", field="input")
    if len(request.text) > MAX_SPEECH_CHARS:
        raise InvalidRequest(
            f"`input` must be a string of at most {MAX_SPEECH_CHARS} characters,"
            f" not one of {len(request.text)}",
            field="input",
        )
    if not any(symbol.isalnum() for symbol in request.text):
        raise InvalidRequest(
            "`input` has nothing to pronounce; send words",
            field="input",
            code="unpronounceable_input",
        )
    if not MIN_SPEED <= request.speed <= MAX_SPEED:
        raise InvalidRequest(
            f"`speed` must be a number from {MIN_SPEED} to {MAX_SPEED}, not {request.speed}",
            field="speed",
        )
