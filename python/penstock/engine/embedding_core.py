"""The loop body of an engine that embeds or reranks: pack sequences, compute, hand out vectors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np

from penstock.base.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from penstock.config import EngineSettings, LoraSettings
from penstock.engine.adapters.null_slot_cache import slot_cache_for
from penstock.engine.types import (
    ENCODER_ADAPTERS,
    NO_ADAPTERS,
    NO_TEXT,
    AdapterSource,
    AdapterState,
    EmbedOutput,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    TokenRequest,
)
from penstock.grammar.vocabulary import Vocabulary
from penstock.runtime.cpu.embedding import EmbeddingRuntime
from penstock.scheduler import NO_ADAPTER

Tokens: TypeAlias = tuple[int, ...]

NOT_FINITE = "the model gave no finite numbers for this request"


@dataclass(slots=True)
class _Job:
    """A request with its waiting sequences, each with the start of its second text (its length if
    there is none). `adapter`: the leased revision, "" for none; `slot`: its slot in memory."""

    id: str
    waiting: deque[tuple[Tokens, int]] = field(default_factory=deque)
    adapter: str = ""
    slot: int = NO_ADAPTER


class EmbeddingCore:
    """One loaded embedding model. Not thread-safe: one thread calls all methods.

    A step takes whole sequences, one per request in turn, up to its tokens and rows: a long list
    does not delay another request's short one. An embedding does not depend on what is computed
    beside it. Requests are admitted while fewer than `max_queue` sequences wait; a request whose
    adapter is not in memory waits for it. `lora`: the limits of adapters, None for none.
    """

    def __init__(
        self, runtime: EmbeddingRuntime, max_queue: int, lora: LoraSettings | None = None
    ) -> None:
        facts = runtime.info
        self._runtime = runtime
        self._max_queue = max_queue
        self._jobs: deque[_Job] = deque()
        self._held: dict[str, _Job] = {}
        self._wake: Callable[[], None] = lambda: None
        reason = NO_ADAPTERS if lora is None else ENCODER_ADAPTERS
        self._adapters = slot_cache_for(runtime.adapters, lora, lambda: self._wake(), reason)
        self._waiting = 0
        self._gauges = EngineGauges(sequences_capacity=facts.max_rows)
        self.info = EngineInfo(
            model_id=facts.model_id,
            max_model_len=facts.max_model_len,
            vocab_size=facts.vocab_size,
            max_num_seqs=facts.max_rows,
            cache_blocks=0,
            block_size=0,
            weight_bytes=facts.weight_bytes,
            fingerprint=facts.fingerprint,
            embedding_width=facts.width,
            memory_bytes=facts.memory_bytes,
        )

    @classmethod
    def for_runtime(cls, runtime: EmbeddingRuntime, settings: EngineSettings) -> EmbeddingCore:
        """An engine over a loaded model."""
        return cls(runtime, settings.max_queue, settings.lora)

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, for the start-up print."""
        return self._runtime.report

    @property
    def has_work(self) -> bool:
        return bool(self._jobs) or self._adapters.has_completions

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Set `wake`, which another thread calls when there is work again without an `embed`."""
        self._wake = wake

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Do nothing: an embedding model has no constraints."""

    def submit(self, request: TokenRequest) -> None:
        """Raise InvalidRequest: the model generates no text."""
        raise InvalidRequest(NO_TEXT, field="model", code="unsupported_model")

    def embed(self, request: EmbedRequest) -> None:
        """Queue a request. Raises InvalidRequest (`adapter_not_found` for a revision that is not
        here), ContextLengthExceeded or Overloaded."""
        if not request.sequences:
            raise InvalidRequest("input must not be empty", field="input")
        for sequence in request.sequences:
            self._check(sequence)
        if self._waiting >= self._max_queue:
            raise Overloaded(
                f"{self._waiting} inputs are waiting already; try again later", retry_after_s=1
            )
        starts = request.second_starts or map(len, request.sequences)
        waiting = deque(zip(request.sequences, starts, strict=True))
        job = _Job(request.id, waiting, request.adapter)
        if job.adapter:
            self._adapters.lease(job.adapter)
        self._waiting += len(job.waiting)
        if self._enter(job):
            self._jobs.append(job)
        else:
            self._held[job.id] = job

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is still there; no output of it follows."""
        for job in (*self._jobs, *self._held.values()):
            if job.id == request_id:
                self._drop(job)
                self._gauges.completed_abort += 1
                return

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        """Load a revision beside the steps; the future is done within a `step`. It fails with
        AdapterRefused."""
        return self._adapters.add(source)

    def retire_adapter(self, revision: str) -> None:
        """Free a revision with its last request. Harmless for one that is not here."""
        self._adapters.retire(revision)

    def adapters(self) -> tuple[AdapterState, ...]:
        """The revisions that are loaded, in memory or not."""
        return self._adapters.states()

    def step(self) -> list[EmbedOutput]:
        """Compute one step. Return an output for each request that had sequences in it, and the
        last one of those whose adapter could not be read."""
        failures = self._release_ready()
        jobs, sequences, second_starts = self._pack()
        if not sequences:
            return failures
        vectors = self._runtime.embed(sequences, [job.slot for job in jobs], second_starts)
        self._gauges.tokens_processed += sum(map(len, sequences))
        rows: dict[str, list[int]] = {}
        for row, job in enumerate(jobs):
            rows.setdefault(job.id, []).append(row)
        by_id = {job.id: job for job in jobs}
        return failures + [self._chunk(by_id[id], vectors[own]) for id, own in rows.items()]

    def gauges(self) -> EngineGauges:
        return msgspec.structs.replace(self._gauges, sequences_waiting=self._waiting)

    def prepare(self) -> bool:
        """Return False; see `Core.prepare`."""
        return False

    def close(self) -> None:
        """Free the model's memory and threads."""
        self._adapters.close()
        self._runtime.close()

    def _check(self, sequence: Tokens) -> None:
        info = self.info
        if not sequence:
            raise InvalidRequest("an input has no tokens", field="input")
        if len(sequence) > info.max_model_len:
            raise ContextLengthExceeded(
                f"an input has {len(sequence)} tokens; the model takes {info.max_model_len}",
                field="input",
            )
        if min(sequence) < 0 or max(sequence) >= info.vocab_size:
            raise InvalidRequest(
                f"token ids must be at least 0 and below {info.vocab_size}", field="input"
            )

    def _pack(self) -> tuple[list[_Job], list[Tokens], list[int]]:
        """Return the jobs of the next sequences, one per request in turn, the sequences, and the
        starts of their second texts. The first sequence that does not fit ends the step, and is the
        first of the next one."""
        left, facts = self._runtime.info.step_tokens, self._runtime.info
        jobs: list[_Job] = []
        sequences: list[Tokens] = []
        second_starts: list[int] = []
        turn = deque(self._jobs)
        while turn and len(sequences) < facts.max_rows and len(turn[0].waiting[0][0]) <= left:
            job = turn.popleft()
            sequence, second_start = job.waiting.popleft()
            left -= len(sequence)
            jobs.append(job)
            sequences.append(sequence)
            second_starts.append(second_start)
            if job.waiting:
                turn.append(job)
        # Jobs that had no turn come first in the next step.
        self._jobs = turn
        self._waiting -= len(sequences)
        return jobs, sequences, second_starts

    def _chunk(
        self, job: _Job, vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    ) -> EmbedOutput:
        if not np.isfinite(vectors).all():
            return self._fail(job, NOT_FINITE)
        if job.waiting:
            return EmbedOutput(job.id, vectors.tobytes())
        self._release(job)
        self._gauges.completed_stop += 1
        return EmbedOutput(job.id, vectors.tobytes(), "stop")

    def _fail(self, job: _Job, reason: str) -> EmbedOutput:
        self._drop(job)
        self._gauges.completed_error += 1
        return EmbedOutput(job.id, b"", "error", reason)

    def _drop(self, job: _Job) -> None:
        if self._held.pop(job.id, None) is None and job.waiting:
            self._jobs.remove(job)
        self._waiting -= len(job.waiting)
        self._release(job)

    def _enter(self, job: _Job) -> bool:
        """Whether the job can be computed: it has no adapter, or one that is in memory."""
        if not job.adapter:
            return True
        slot = self._adapters.enter(job.adapter)
        if slot is not None:
            job.slot = slot
        return slot is not None

    def _release(self, job: _Job) -> None:
        if job.adapter:
            self._adapters.release(job.adapter, entered=job.slot != NO_ADAPTER)

    def _release_ready(self) -> list[EmbedOutput]:
        """Admit the requests whose adapters were loaded; return the last outputs of those whose
        load failed."""
        news = self._adapters.collect()
        failures: list[EmbedOutput] = []
        for job in [job for job in self._held.values() if job.adapter in news]:
            error = news[job.adapter]
            if error is not None:
                failures.append(self._fail(job, str(error)))
            elif self._enter(job):
                self._jobs.append(self._held.pop(job.id))
        return failures
