"""The body of the engine's loop: plan a step, execute it, tell who got which token."""

from __future__ import annotations

import time

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.config import EngineSettings
from penstock.engine.types import (
    EngineGauges,
    EngineInfo,
    TokenChunk,
    TokenDelta,
    TokenRequest,
)
from penstock.runtime.load import load_runtime
from penstock.runtime.protocol import Runtime
from penstock.scheduler import Progress, Scheduler

FAILED_ROW = "the model gave no finite scores for this request"


class EngineCore:
    """One loaded model. Not thread-safe: one thread calls all of it."""

    def __init__(self, runtime: Runtime, scheduler: Scheduler, info: EngineInfo) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self.info = info

    @classmethod
    def load(cls, settings: EngineSettings) -> EngineCore:
        """Load the model that `settings` names. Raises ModelError."""
        runtime = load_runtime(settings)
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
        )
        return cls(runtime, scheduler, info)

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, for the start-up print."""
        return self._runtime.report

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def submit(self, request: TokenRequest) -> None:
        """Queue a request. Raises InvalidRequest, ContextLengthExceeded or Overloaded."""
        if not all(0 <= token < self.info.vocab_size for token in request.token_ids):
            raise InvalidRequest(
                f"token ids must be at least 0 and below {self.info.vocab_size}", field="prompt"
            )
        self._scheduler.submit(
            request.id,
            token_ids=request.token_ids,
            sampling=request.sampling,
            seed=request.seed,
            max_tokens=request.max_tokens,
            stop_token_ids=request.stop_token_ids,
            top_logprobs=request.top_logprobs,
            cache_salt=request.cache_salt,
        )

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is still there; no chunk of it follows."""
        self._scheduler.abort(request_id)

    def step(self) -> list[TokenChunk]:
        """Compute one step. Empty when there was nothing to do or no token came of it."""
        plan = self._scheduler.plan()
        if plan is None:
            return []
        began = time.monotonic()
        result = self._runtime.execute(plan)
        now = time.monotonic()
        return [_chunk(progress, now) for progress in self._scheduler.commit(result, now - began)]

    def gauges(self) -> EngineGauges:
        return EngineGauges(**msgspec.structs.asdict(self._scheduler.gauges()))

    def close(self) -> None:
        """Free the model's memory and threads."""
        self._runtime.close()


def _chunk(progress: Progress, now: float) -> TokenChunk:
    tokens: tuple[TokenDelta, ...] = ()
    if progress.token_id is not None:
        tokens = (TokenDelta(progress.token_id, progress.logprob, progress.top),)
    return TokenChunk(
        id=progress.id,
        tokens=tokens,
        step_time_s=now,
        cached_tokens=progress.cached_tokens,
        finish=progress.finish,
        error=FAILED_ROW if progress.finish == "error" else None,
    )
