"""Holds requests back from the scheduler until their grammar, media and adapter are ready.

Other threads compile grammars and read adapters; the engine's thread encodes media between steps. A
request that needs none of them passes the requests that wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from penstock.base.errors import ModelError, ServiceError
from penstock.engine.adapters.null_slot_cache import SlotCache
from penstock.engine.media.encode_queue import EncodeQueue
from penstock.engine.media.prompt_media import PromptMedia
from penstock.engine.types import TokenOutput, TokenRequest
from penstock.grammar.cache import CompiledGrammar, GrammarCache, guide_of
from penstock.grammar.types import GrammarTriggers
from penstock.scheduler import NO_ADAPTER, Guide, NewSequence, Progress, Scheduler

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _PendingRequest:
    """A request that waits for its grammar, its media or its adapter.

    `compiled`: its grammar, None without a constraint.
    `triggers`: the text from which the grammar applies, None if it applies from the start.
    `adapter`: its adapter revision, "" for the base model.
    `encoded`: all its media are encoded.
    """

    compiled: Future[CompiledGrammar] | None
    triggers: GrammarTriggers | None
    adapter: str
    encoded: bool = True

    def guide(self) -> Guide | None:
        """Return the guide of the sequence, or None without a grammar, which must be compiled."""
        return None if self.compiled is None else guide_of(self.compiled, self.triggers)


@dataclass(slots=True)
class _Lease:
    """A request's lease of an adapter revision. `entered`: the request has an adapter slot."""

    adapter: str
    entered: bool = False


class AdmissionQueue:
    """The requests between `submit` and the scheduler. Not thread-safe: one thread calls all
    methods. Another thread calls `wake_engine` when `release_ready` has something to do.

    `media`: encodes the media of requests; None for a model that reads only text.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        grammars: GrammarCache,
        adapters: SlotCache,
        wake_engine: Callable[[], None],
        media: EncodeQueue | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._grammars = grammars
        self._adapters = adapters
        self._wake = wake_engine
        self._media = media
        self._pending: dict[str, _PendingRequest] = {}
        self._leases: dict[str, _Lease] = {}
        self._compiled: SimpleQueue[str] = SimpleQueue()

    @property
    def has_completions(self) -> bool:
        """Whether a grammar or an adapter has become ready since the last `release_ready`."""
        return not self._compiled.empty() or self._adapters.has_completions

    def submit(self, request: TokenRequest, stop_token_ids: frozenset[int]) -> None:
        """Pass a request to the scheduler, or hold it until its grammar, media and adapter are
        ready. A model that reads only text must not get media.
        `stop_token_ids`: the model's stop tokens, which also end an answer whose grammar applies
        from the start. Raises ServiceError."""
        compiled = triggers = None
        if request.constraint is not None:
            compiled = self._grammars.compile(request.constraint)
            triggers = request.constraint.triggers
        binds_all = compiled is not None and triggers is None
        stops = request.stop_token_ids | (stop_token_ids if binds_all else frozenset())
        media = PromptMedia(len(request.token_ids), request.media, request.rope_positions)
        new = NewSequence(
            id=request.id,
            token_ids=request.token_ids,
            sampling=request.sampling,
            seed=request.seed,
            max_tokens=request.max_tokens,
            min_tokens=0 if binds_all else request.min_tokens,
            stop_token_ids=stops,
            top_logprobs=request.top_logprobs,
            prompt_logprobs=request.prompt_logprobs,
            cache_salt=request.cache_salt,
            adapter=request.adapter,
            group=request.group,
            media=media.spans(),
            media_runs=media.runs(),
            rope_positions=request.rope_positions,
        )
        self._take_lease(request)
        try:
            self._scheduler.enqueue_unready(new)
        except ServiceError:
            self._end(request.id)
            raise
        encoded = self._media is None or self._media.enter(request.id, request.media)
        arrival = _PendingRequest(compiled, triggers, request.adapter, encoded)
        self._pending[request.id] = arrival
        if compiled is None or (compiled.done() and compiled.exception() is None):
            self._enqueue(request.id, arrival)
        else:
            compiled.add_done_callback(lambda _: self._on_compiled(request.id))

    def abort(self, request_id: str) -> None:
        """Drop a request if it has not finished."""
        self._pending.pop(request_id, None)
        self._scheduler.abort(request_id)
        self._end(request_id)

    def finish(self, progress: Iterable[Progress]) -> None:
        """Release the adapter leases and the media of finished requests."""
        if self._leases or self._media is not None:
            for one in progress:
                if one.finish is not None:
                    self._end(one.id)

    def release_ready(self) -> list[TokenOutput]:
        """Pass the requests that have become ready to the scheduler. Return the last output of each
        request whose grammar or adapter failed."""
        failures: list[TokenOutput] = []
        while not self._compiled.empty():
            self._join(self._compiled.get(), failures)
        news = self._adapters.collect()
        for request_id, arrival in list(self._pending.items()) if news else ():
            if arrival.adapter in news:
                error = news[arrival.adapter]
                if error is None:
                    self._join(request_id, failures)
                else:
                    failures.append(self._refuse(request_id, str(error)))
        return failures

    def encode_media(self, budget_s: float | None) -> list[TokenOutput]:
        """Encode media of waiting requests; see `EncodeQueue.advance`. Pass the requests that have
        become ready to the scheduler. Return the last output of each request whose media cannot be
        encoded."""
        failures: list[TokenOutput] = []
        news = {} if self._media is None else self._media.advance(budget_s)
        for request_id, error in news.items():
            if error is None:
                self._pending[request_id].encoded = True
                self._join(request_id, failures)
            else:
                failures.append(self._refuse(request_id, error))
        return failures

    def _join(self, request_id: str, failures: list[TokenOutput]) -> None:
        arrival = self._pending.get(request_id)
        if arrival is None or (arrival.compiled is not None and not arrival.compiled.done()):
            return
        compiled = arrival.compiled
        error = None if compiled is None else compiled.exception()
        if error is not None:
            if not isinstance(error, ServiceError | ModelError):
                log.error("the grammar of %s was not compiled", request_id, exc_info=error)
            failures.append(self._refuse(request_id, str(error)))
            return
        self._enqueue(request_id, arrival)

    def _enqueue(self, request_id: str, arrival: _PendingRequest) -> None:
        """Pass a request whose grammar is compiled to the scheduler, unless it must wait for its
        media or its adapter."""
        slot = self._enter(request_id) if arrival.encoded else None
        if slot is not None:
            del self._pending[request_id]
            self._scheduler.make_ready(request_id, arrival.guide(), slot)

    def _refuse(self, request_id: str, error: str) -> TokenOutput:
        del self._pending[request_id]
        self._scheduler.abort(request_id, "error")
        self._end(request_id)
        return TokenOutput(
            request_id, (), time.monotonic(), cached_tokens=0, finish="error", error=error
        )

    def _take_lease(self, request: TokenRequest) -> None:
        if request.adapter:
            self._adapters.lease(request.adapter)
            self._leases[request.id] = _Lease(request.adapter)

    def _enter(self, request_id: str) -> int | None:
        """Return the adapter slot of a request whose grammar is ready: NO_ADAPTER for the base
        model, None if the request must wait for its adapter."""
        lease = self._leases.get(request_id)
        if lease is None:
            return NO_ADAPTER
        slot = self._adapters.enter(lease.adapter)
        lease.entered = slot is not None
        return slot

    def _end(self, request_id: str) -> None:
        if self._media is not None:
            self._media.leave(request_id)
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            self._adapters.release(lease.adapter, entered=lease.entered)

    def _on_compiled(self, request_id: str) -> None:
        """Record that the grammar of a request is compiled, and wake the engine. Runs in a compiler
        thread."""
        self._compiled.put(request_id)
        self._wake()
