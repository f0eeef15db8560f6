"""Decodes one window: submits it to the engine, and again at higher temperatures if the text is
unlikely or repeats itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.base.errors import EngineFault, Overloaded
from penstock.base.ids import new_id
from penstock.dialog import Sampling
from penstock.engine.protocol import Engine
from penstock.engine.types import MediaItem, TokenOutput, TokenRequest
from penstock.generation.transcription.segments import (
    FRAMES_PER_S,
    MIN_LOGPROB,
    Segment,
    WindowTokens,
)
from penstock.models.media.prepared import PreparedMedia
from penstock.models.whisper.spec import WhisperTokens
from penstock.text import Tokenizer

TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The temperatures at which a window is decoded until its text is likely."""
MIN_NO_SPEECH: Final = 0.6
"""The probability of silence above which unlikely text is dropped."""
_LANGUAGE_BIAS: Final = 100.0
_RETRY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a recording.

    - `frames`: frames that are not padding.
    - `prompt`: the tokens before the transcript, with its opening.
    """

    media: PreparedMedia
    digest: bytes
    frames: int
    prompt: tuple[int, ...]


@dataclass(slots=True)
class Decoded:
    """The result of a window, once its segments have been read.

    - `advance`: frames to the start of the next window.
    - `temperature`: of the last attempt.
    - `num_tokens`: decoded tokens that count as the answer's, at any time.
    - `cut`: the window ended at the limit of the answer's tokens.
    """

    advance: int = 0
    temperature: float = 0.0
    num_tokens: int = 0
    cut: bool = False


class WindowDecoder:
    """Decodes the windows of one request.

    - `temperatures`: tried in order.
    - `seed`: of the first attempt.
    - `cache_salt`: see `TokenRequest`.
    - `has_started`: the engine has admitted a request.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        tokens: WhisperTokens,
        temperatures: Sequence[float] = TEMPERATURES,
        seed: int = 0,
        cache_salt: bytes = b"",
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._temperatures = temperatures
        self._seed = seed
        self._cache_salt = cache_salt
        self._group = new_id("group_")
        self._most_tokens = engine.info.max_model_len // 2
        self.has_started = False

    async def language(self, window: Window) -> str:
        """Return the language code of a window."""
        codes = {token: code for code, token in self._tokens.languages.items()}
        bias = dict.fromkeys(codes, _LANGUAGE_BIAS)
        request = self._request(window, (self._tokens.start,), 1, Sampling(0.0, logit_bias=bias))
        async with aclosing(self._outputs(request)) as outputs:
            async for output in outputs:
                for token in output.tokens:
                    return codes[token.token_id]
        raise EngineFault("the engine gave no language")

    async def segments(
        self, window: Window, limit: int, result: Decoded
    ) -> AsyncGenerator[Segment, None]:
        """Yield the segments of a window as soon as they are final, and set `result`. `limit`: most
        tokens."""
        said = WindowTokens(self._tokens, self._tokenizer)
        is_silent: bool | None = None
        for attempt, temperature in enumerate(self._temperatures):
            result.temperature = temperature
            tokens = self._attempt(window, said, limit, Sampling(temperature), attempt, result)
            async with aclosing(tokens) as ends:
                async for _ in ends:
                    if said.is_likely:
                        for segment in said.take_complete():
                            yield segment
            if said.mean_logprob <= MIN_LOGPROB and is_silent is None:
                is_silent = await self._is_silent(window)
            is_last = said.is_likely or attempt == len(self._temperatures) - 1
            if is_last or (is_silent and said.mean_logprob <= MIN_LOGPROB):
                break
            said.drop_rest()
        if is_silent and said.mean_logprob <= MIN_LOGPROB:
            result.advance = window.frames
            return
        for segment in said.take_complete():
            yield segment
        result.advance = said.advance(window.frames)
        if result.cut or not said.is_unfinished:
            rest = said.take_rest(window.frames / FRAMES_PER_S)
            if rest is not None:
                yield rest

    async def _attempt(
        self,
        window: Window,
        said: WindowTokens,
        limit: int,
        sampling: Sampling,
        attempt: int,
        result: Decoded,
    ) -> AsyncGenerator[None, None]:
        """Decode the tokens after those in `said` and add them. Yield at the end of each
        segment."""
        prompt = (*window.prompt, *said.ids)
        room = self._engine.info.max_model_len - len(prompt)
        most = min(self._most_tokens - len(said.ids), room)
        count = min(most, limit - len(said.ids))
        result.cut = limit - len(said.ids) < 1
        if count < 1:
            return
        request = self._request(window, prompt, count, sampling, attempt)
        async with aclosing(self._outputs(request)) as outputs:
            async for output in outputs:
                for token in output.tokens:
                    said.push(token.token_id, token.logprob or 0.0)
                    result.num_tokens = len(said.ids)
                    if said.ends_segment:
                        yield
                result.cut = output.finish == "length" and count < most

    async def _is_silent(self, window: Window) -> bool:
        """Return whether the window probably has no speech: the model's probability of its token
        for silence, in place of the language."""
        before = window.prompt[: window.prompt.index(self._tokens.start) + 1]
        prompt = (*before, self._tokens.no_speech)
        request = self._request(window, prompt, 0, Sampling(0.0))
        scored = msgspec.structs.replace(request, prompt_logprobs=0)
        logprob = -math.inf
        async with aclosing(self._outputs(scored)) as outputs:
            async for output in outputs:
                for token in output.prompt:
                    logprob = token.logprob if token.logprob is not None else logprob
        return math.exp(logprob) > MIN_NO_SPEECH

    def _request(
        self,
        window: Window,
        prompt: tuple[int, ...],
        count: int,
        sampling: Sampling,
        attempt: int = 0,
    ) -> TokenRequest:
        # The window takes the place of the first token, so that prefix keys depend on it.
        item = MediaItem(window.digest, window.media, 0, 1, ((0, 1),))
        return TokenRequest(
            id=new_id("seq_"),
            token_ids=prompt,
            sampling=sampling,
            seed=self._seed + attempt,
            max_tokens=count,
            stop_token_ids=frozenset((self._tokens.end,)),
            top_logprobs=0,
            cache_salt=self._cache_salt,
            group=self._group,
            media=(item,),
        )

    async def _outputs(self, request: TokenRequest) -> AsyncGenerator[TokenOutput, None]:
        """Submit a request and yield its outputs. The first request of a transcript fails if the
        queue is full; later ones wait. Raises ServiceError."""
        while True:
            async with aclosing(self._engine.generate(request)) as outputs:
                try:
                    await outputs.admitted()
                except Overloaded:
                    if not self.has_started:
                        raise
                else:
                    self.has_started = True
                    async for output in outputs:
                        if output.finish in ("error", "abort"):
                            raise EngineFault("the engine failed this request")
                        yield output
                    return
            await asyncio.sleep(_RETRY_S)
            request = msgspec.structs.replace(request, id=new_id("seq_"))
