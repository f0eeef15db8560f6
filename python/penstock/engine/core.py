"""The body of the engine's loop: plan a step, execute it, tell who got which token."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from penstock.base.errors import InvalidRequest, ModelError, ServiceError
from penstock.base.host import available_cores
from penstock.config import EngineSettings
from penstock.engine.grammars import Grammars, guide_of
from penstock.engine.masks import MaskFiller
from penstock.engine.types import (
    NO_EMBEDDINGS,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    TokenChunk,
    TokenDelta,
    TokenRequest,
)
from penstock.models.vocabulary import Vocabulary
from penstock.runtime.protocol import Runtime
from penstock.scheduler import Progress, Scheduler

if TYPE_CHECKING:
    from llguidance import LLMatcher

FAILED_ROW = "the model gave no finite scores for this request"


class EngineCore:
    """One loaded model. Not thread-safe: one thread calls all of it. `threads`: how many may fill
    grammar masks while a step computes."""

    def __init__(
        self, runtime: Runtime, scheduler: Scheduler, info: EngineInfo, threads: int = 1
    ) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self.info = info
        self._grammars = Grammars(info.vocab_size)
        self._masks = MaskFiller(info.vocab_size, threads)
        self._stop_ids: frozenset[int] = frozenset()
        self._compiling: dict[str, Future[LLMatcher]] = {}
        self._compiled: SimpleQueue[str] = SimpleQueue()
        self._wake: Callable[[], None] = lambda: None
        self._flying = False
        self._began = 0.0

    @classmethod
    def over(cls, runtime: Runtime, settings: EngineSettings) -> EngineCore:
        """An engine over a loaded model."""
        facts = runtime.info
        scheduler = Scheduler(
            num_blocks=facts.cache_blocks,
            block_tokens=facts.block_tokens,
            context_tokens=facts.context_tokens,
            max_seqs=settings.max_seqs,
            token_budget=settings.token_budget,
            max_queue=settings.max_queue,
            prefix_caching=settings.prefix_cache_n > 0,
            no_kv_cache=settings.no_kv_cache,
            speculation=settings.speculation,
        )
        info = EngineInfo(
            model_id=facts.model_id,
            context_tokens=facts.context_tokens,
            vocab_size=facts.vocab_size,
            max_seqs=settings.max_seqs,
            cache_blocks=facts.cache_blocks,
            block_tokens=facts.block_tokens,
            weight_bytes=facts.weight_bytes,
            fingerprint=facts.fingerprint,
            memory_bytes=facts.memory_bytes,
        )
        return cls(runtime, scheduler, info, settings.threads or available_cores())

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, for the start-up print."""
        return self._runtime.report

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or not self._compiled.empty()

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """`wake` is called, by another thread, when there is work again without a `submit`."""
        self._wake = wake

    def teach(self, vocabulary: Vocabulary) -> None:
        """Take in the model's tokenizer, which constraints need."""
        self._grammars.teach(vocabulary)
        self._stop_ids = frozenset(vocabulary.stop_ids)

    def submit(self, request: TokenRequest) -> None:
        """Queue a request. Raises InvalidRequest, ContextLengthExceeded or Overloaded."""
        if not all(0 <= token < self.info.vocab_size for token in request.token_ids):
            raise InvalidRequest(
                f"token ids must be at least 0 and below {self.info.vocab_size}", field="prompt"
            )
        compiled = None
        stop_ids = request.stop_token_ids
        if request.constraint is not None:
            compiled = self._grammars.compile(request.constraint)
            stop_ids |= self._stop_ids
        ready = compiled is not None and compiled.done() and compiled.exception() is None
        self._scheduler.submit(
            request.id,
            token_ids=request.token_ids,
            sampling=request.sampling,
            seed=request.seed,
            max_tokens=request.max_tokens,
            stop_token_ids=stop_ids,
            top_logprobs=request.top_logprobs,
            prompt_logprobs=request.prompt_logprobs,
            cache_salt=request.cache_salt,
            guide=guide_of(compiled) if compiled is not None and ready else None,
            held=compiled is not None and not ready,
        )
        if compiled is not None and not ready:
            self._compiling[request.id] = compiled
            compiled.add_done_callback(lambda _: self._on_compiled(request.id))

    def embed(self, request: EmbedRequest) -> None:
        """Raises InvalidRequest: the model writes text."""
        raise InvalidRequest(NO_EMBEDDINGS, field="model", code="unsupported_model")

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is still there; no chunk of it follows."""
        self._compiling.pop(request_id, None)
        self._scheduler.abort(request_id)

    def step(self) -> list[TokenChunk]:
        """Compute one step. Empty when there was nothing to do or no token came of it.

        Where the runtime overlaps, the step after it is on its way already when this returns, if
        that could be planned.
        """
        chunks = self._release_compiled()
        if not self._flying and not self._launch():
            return chunks
        ahead = self._scheduler.plan_ahead() if self._runtime.info.overlaps else None
        if ahead is not None:
            self._runtime.submit(ahead)
        result = self._runtime.collect()
        now = time.monotonic()
        progress = self._scheduler.commit(result, now - self._began)
        self._flying, self._began = ahead is not None, now
        return chunks + _chunks(progress, now)

    def gauges(self) -> EngineGauges:
        grammars, masks = self._grammars, self._masks
        return EngineGauges(
            **msgspec.structs.asdict(self._scheduler.gauges()),
            grammars_compiled=grammars.compiled,
            grammars_reused=grammars.reused,
            grammars_refused=grammars.refused,
            grammar_compile_seconds=grammars.compile_s,
            grammar_mask_seconds=masks.fill_s,
            grammar_mask_wait_seconds=masks.wait_s,
        )

    def close(self) -> None:
        """Free the model's memory and threads."""
        self._grammars.close()
        self._masks.close()
        self._runtime.close()

    def _launch(self) -> bool:
        """Plan a step and submit it. False: there is no work."""
        plan = self._scheduler.plan()
        if plan is None:
            return False
        self._began = time.monotonic()
        self._runtime.submit(plan, self._masks.begin(self._scheduler.sampled))
        return True

    def _on_compiled(self, request_id: str) -> None:
        """In a thread of the compiler."""
        self._compiled.put(request_id)
        self._wake()

    def _release_compiled(self) -> list[TokenChunk]:
        """Let the requests join whose grammars are there; the chunks of those that have none."""
        failures = []
        while not self._compiled.empty():
            request_id = self._compiled.get()
            compiled = self._compiling.pop(request_id, None)
            if compiled is None:
                continue
            try:
                self._scheduler.release(request_id, guide_of(compiled))
            except (ServiceError, ModelError) as error:
                self._scheduler.abort(request_id, "error")
                now = time.monotonic()
                failures.append(TokenChunk(request_id, (), now, 0, "error", str(error)))
        return failures


def _chunks(progress: list[Progress], now: float) -> list[TokenChunk]:
    """One chunk for each request; what a step made of one stands together."""
    chunks = []
    for _, group in itertools.groupby(progress, key=attrgetter("id")):
        parts = list(group)
        last = parts[-1]
        error = (last.error or FAILED_ROW) if last.finish == "error" else None
        chunks.append(
            TokenChunk(
                id=last.id,
                tokens=tuple(
                    TokenDelta(part.token_id, part.logprob, part.top)
                    for part in parts
                    if part.token_id is not None
                ),
                step_time_s=now,
                cached_tokens=parts[0].cached_tokens,
                finish=last.finish,
                error=error,
                prompt=tuple(
                    TokenDelta(one.token_id, one.logprob, one.top)
                    for part in parts
                    for one in part.scored
                ),
            )
        )
    return chunks
