"""The one test double: an engine with scripted tokens behind the real Engine protocol.

It keeps the contract of `penstock.engine.protocol.Engine`: stop tokens end a sequence and are not
returned, `max_tokens` is obeyed, the last chunk has `finish`, closing early aborts. It generates a
script: the same tokens for every request, or a function of the request.

    ScriptedEngine([5, 6, 7])                       # three tokens, then finish "stop"
    ScriptedEngine(lambda request: request.token_ids)   # echoes the prompt
    ScriptedEngine([5, gate, 6])                    # waits for an asyncio.Event before the 6
    ScriptedEngine([5, EngineFault("died")])        # raises in the middle of the stream
    ScriptedEngine([5, RowError("bad row")])        # ends with finish "error"
    ScriptedEngine([(5, 6), 7])                     # two tokens in the first chunk

If a request asks for `prompt_logprobs`, the tokens of the prompt come first, two per chunk.

Adapters are read and checked as by a real engine, for a base of `lora_folders.SMALL`, but they do
not change the generated tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.adapters.peft_folder import read_adapter
from penstock.base.errors import InvalidRequest
from penstock.config import LoraSettings
from penstock.engine.protocol import Tap
from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EngineGauges,
    EngineInfo,
    FinishReason,
    TokenDelta,
    TokenOutput,
    TokenRequest,
)
from penstock.grammar.vocabulary import Vocabulary
from tests.support.checkpoints.lora_adapters import SMALL


@dataclass(frozen=True)
class RowError:
    """Ends the sequence with finish "error" and this message."""

    message: str


Token = int | TokenDelta
Step = Token | tuple[Token, ...] | asyncio.Event | Exception | RowError
Script = Sequence[Step] | Callable[[TokenRequest], Sequence[Step]]

INFO = EngineInfo(
    model_id="scripted",
    max_model_len=2048,
    vocab_size=49152,
    max_num_seqs=8,
    cache_blocks=128,
    block_size=16,
    weight_bytes=0,
    fingerprint="fp_scripted",
)


class ScriptedEngine:
    """Implements `penstock.engine.protocol.Engine`.

    Records for assertions: `requests` in order of their first step, `active` ids, `aborted` ids,
    `finished` (id -> reason). With `top_logprobs` set, a bare token id gets the logprob -0.5 and
    alternatives token+1, token+2, ... with -1.5, -2.5, ... Loading an adapter waits for
    `load_gate`.
    """

    def __init__(self, script: Script, *, info: EngineInfo = INFO, cached_tokens: int = 0) -> None:
        self.load_gate = asyncio.Event()
        self.load_gate.set()
        self.lora = LoraSettings()
        self._adapters: dict[str, AdapterState] = {}
        self._leases: Counter[str] = Counter()
        self._script = script
        self._info = info
        self._cached_tokens = cached_tokens
        self.requests: list[TokenRequest] = []
        self.taught: list[Vocabulary] = []
        self.active: set[str] = set()
        self.aborted: list[str] = []
        self.finished: dict[str, FinishReason] = {}

    @property
    def info(self) -> EngineInfo:
        return self._info

    def play(self, script: Script) -> None:
        """Use this script for all following requests."""
        self._script = script

    async def generate(
        self, request: TokenRequest, tap: Tap | None = None
    ) -> AsyncIterator[TokenOutput]:
        assert request.id not in self.active, "request ids are unique"
        assert request.max_tokens >= 0
        assert len(request.token_ids) + request.max_tokens <= self._info.max_model_len
        if request.adapter:
            state = self._adapters.get(request.adapter)
            if state is None or (state.retired and not self._leases[request.adapter]):
                raise InvalidRequest("no such adapter", field="adapter", code="adapter_not_found")
        self.requests.append(request)
        self.active.add(request.id)
        self._leases[request.adapter] += 1
        steps = self._script(request) if callable(self._script) else self._script
        ended = False
        try:
            async for chunk in self._play(request, steps):
                ended = chunk.finish is not None
                if chunk.finish is not None:
                    self.finished[request.id] = chunk.finish
                yield chunk
        except Exception:
            ended = True
            raise
        finally:
            self.active.discard(request.id)
            self._leases[request.adapter] -= 1
            self._free_retired()
            if not ended:
                self.aborted.append(request.id)

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        self.taught.append(vocabulary)

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        await self.load_gate.wait()
        adapter = read_adapter(Path(source.folder), SMALL, self.lora, source.revision)
        state = AdapterState(source.revision, adapter.rank, adapter.size_bytes)
        self._adapters[source.revision] = state
        return state

    async def retire_adapter(self, revision: str) -> None:
        state = self._adapters.get(revision)
        if state is not None:
            self._adapters[revision] = msgspec.structs.replace(state, retired=True)
            self._free_retired()

    async def adapters(self) -> tuple[AdapterState, ...]:
        return tuple(
            msgspec.structs.replace(state, active_leases=self._leases[revision])
            for revision, state in self._adapters.items()
        )

    def _free_retired(self) -> None:
        for revision, state in list(self._adapters.items()):
            if state.retired and not self._leases[revision]:
                del self._adapters[revision]

    async def gauges(self) -> EngineGauges:
        reasons = list(self.finished.values())
        return EngineGauges(
            sequences_running=len(self.active),
            sequences_capacity=self._info.max_num_seqs,
            kv_cache_blocks_total=self._info.cache_blocks,
            completed_stop=reasons.count("stop"),
            completed_length=reasons.count("length"),
            completed_abort=len(self.aborted),
            completed_error=reasons.count("error"),
        )

    async def _play(
        self, request: TokenRequest, steps: Sequence[Step]
    ) -> AsyncIterator[TokenOutput]:
        cached: int | None = self._cached_tokens
        made = 0
        prompt = [] if request.prompt_logprobs is None else request.token_ids[1:]
        for start in range(0, len(prompt), 2):
            pair = tuple(_delta(token, request.prompt_logprobs) for token in prompt[start:][:2])
            yield TokenOutput(request.id, (), time.monotonic(), cached, prompt=pair)
            cached = None
        if request.max_tokens == 0:
            yield _chunk(request, (), cached, "length")
            return
        for step in steps:
            await asyncio.sleep(0)
            if isinstance(step, asyncio.Event):
                await step.wait()
                continue
            if isinstance(step, Exception):
                raise step
            if isinstance(step, RowError):
                yield _chunk(request, (), cached, "error", step.message)
                return
            tokens, finish = _cut(request, step, made)
            made += len(tokens)
            yield _chunk(request, tokens, cached, finish)
            cached = None
            if finish is not None:
                return
        yield _chunk(request, (), cached, "stop")


def _cut(
    request: TokenRequest, step: Token | tuple[Token, ...], made: int
) -> tuple[tuple[TokenDelta, ...], FinishReason | None]:
    """Return the tokens of a step up to a stop token or the token limit, and the finish reason if
    one of them ended it."""
    kept: list[TokenDelta] = []
    for token in step if isinstance(step, tuple) else (step,):
        delta = token if isinstance(token, TokenDelta) else _delta(token, request.top_logprobs)
        if delta.token_id in request.stop_token_ids:
            return tuple(kept), "stop"
        kept.append(delta)
        if made + len(kept) == request.max_tokens:
            return tuple(kept), "length"
    return tuple(kept), None


def _delta(token_id: int, top_logprobs: int | None) -> TokenDelta:
    if top_logprobs is None:
        return TokenDelta(token_id)
    top = tuple((token_id + i, -0.5 - i) for i in range(top_logprobs))
    return TokenDelta(token_id, -0.5, top)


def _chunk(
    request: TokenRequest,
    tokens: tuple[TokenDelta, ...],
    cached: int | None,
    finish: FinishReason | None,
    error: str | None = None,
) -> TokenOutput:
    return TokenOutput(request.id, tokens, time.monotonic(), cached, finish, error)
