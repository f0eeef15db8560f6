"""The one test double: an engine with scripted tokens behind the real Engine protocol.

It keeps the contract of `penstock.engine.protocol.Engine`: stop tokens end a sequence and are not
shown, `max_tokens` is obeyed, the last chunk has `finish`, closing early is an abort. It
generates a script: the same tokens for every request, or a function of the request.

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
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.adapters.peft_folder import read_adapter
from penstock.base.errors import InvalidRequest
from penstock.config import LoraSettings
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
from penstock.engine.weight_orders import WeightOrder, WeightsState, unchangeable
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

    def generate(self, *requests: TokenRequest) -> ScriptedStream:
        return ScriptedStream(self, requests)

    def admit(self, request: TokenRequest) -> AsyncGenerator[TokenOutput, None]:
        """Return the outputs of a request. Raises the error that its script begins with."""
        assert request.id not in self.active, "request ids are unique"
        assert request.max_tokens >= 0
        assert len(request.token_ids) + request.max_tokens <= self._info.max_model_len
        if request.adapter:
            state = self._adapters.get(request.adapter)
            if state is None or (state.retired and not self._leases[request.adapter]):
                raise InvalidRequest("no such adapter", field="adapter", code="adapter_not_found")
        self.requests.append(request)
        self.active.add(request.id)
        steps = self._script(request) if callable(self._script) else self._script
        if steps and isinstance(steps[0], Exception):
            self.active.discard(request.id)
            raise steps[0]
        self._leases[request.adapter] += 1
        return self._play(request, steps)

    def end(self, request: TokenRequest, reason: FinishReason | None, *, aborted: bool) -> None:
        """Take note of the end of a request."""
        self.active.discard(request.id)
        self._leases[request.adapter] -= 1
        self._free_retired()
        if reason is not None:
            self.finished[request.id] = reason
        if aborted:
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

    async def change_weights(self, order: WeightOrder) -> WeightsState:
        raise unchangeable()

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
    ) -> AsyncGenerator[TokenOutput, None]:
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


class ScriptedStream:
    """Implements `penstock.engine.protocol.OutputStream`: plays a script as far as it is read."""

    def __init__(self, engine: ScriptedEngine, requests: Sequence[TokenRequest]) -> None:
        self._engine = engine
        self._waiting = deque(requests)
        self._requests: dict[str, TokenRequest] = {}
        self._playing: dict[str, AsyncGenerator[TokenOutput, None]] = {}
        self._next: dict[str, asyncio.Task[TokenOutput]] = {}
        self._dropped: list[str] = []

    async def admitted(self) -> None:
        while self._waiting and len(self._playing) < 2 * self._engine.info.max_num_seqs:
            request = self._waiting.popleft()
            self._playing[request.id] = self._engine.admit(request)
            self._requests[request.id] = request

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> TokenOutput:
        while self._dropped:
            await self._drop(self._dropped.pop())
        await self.admitted()
        if not self._playing and not self._next:
            raise StopAsyncIteration
        if len(self._playing) == 1 and not self._next:
            (request_id,) = self._playing
            return await self._take(request_id)
        for request_id in self._playing:
            if request_id not in self._next:
                self._next[request_id] = asyncio.create_task(self._take(request_id))
        await asyncio.wait(self._next.values(), return_when=asyncio.FIRST_COMPLETED)
        done = next(id for id, task in self._next.items() if task.done())
        return self._next.pop(done).result()

    def abort(self, request_id: str) -> None:
        self._dropped.append(request_id)

    async def aclose(self) -> None:
        self._waiting.clear()
        for request_id in list(self._playing):
            await self._drop(request_id)

    async def _take(self, request_id: str) -> TokenOutput:
        try:
            output = await anext(self._playing[request_id])
        except Exception:
            del self._playing[request_id]
            self._engine.end(self._requests[request_id], None, aborted=False)
            raise
        if output.finish is not None:
            await self._playing.pop(request_id).aclose()
            self._engine.end(self._requests[request_id], output.finish, aborted=False)
        return output

    async def _drop(self, request_id: str) -> None:
        task = self._next.pop(request_id, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        played = self._playing.pop(request_id, None)
        if played is not None:
            await played.aclose()
            self._engine.end(self._requests[request_id], None, aborted=True)


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
