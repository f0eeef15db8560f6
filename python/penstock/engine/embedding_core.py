"""The body of the loop of an engine that makes embeddings: pack sequences, compute, hand out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from penstock.adapters.errors import AdapterRefused
from penstock.base.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from penstock.config import EngineSettings
from penstock.engine.types import (
    NO_ADAPTERS,
    NO_TEXT,
    AdapterSource,
    AdapterState,
    EmbedChunk,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    TokenRequest,
)
from penstock.models.vocabulary import Vocabulary
from penstock.runtime.embedding import EmbeddingRuntime

NOT_FINITE = "the model gave no finite embedding for this request"


@dataclass(slots=True)
class _Job:
    """A request with the sequences that it still waits for."""

    id: str
    waiting: deque[tuple[int, ...]] = field(default_factory=deque)


class EmbeddingCore:
    """One loaded embedding model. Not thread-safe: one thread calls all of it.

    A step takes whole sequences, one of each request in turn, as far as its tokens and rows last:
    a long list delays nobody else's short one. An embedding does not depend on what is computed
    beside it. Requests are admitted while fewer than `max_queue` sequences wait.
    """

    def __init__(self, runtime: EmbeddingRuntime, max_queue: int) -> None:
        facts = runtime.info
        self._runtime = runtime
        self._max_queue = max_queue
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._gauges = EngineGauges(sequences_capacity=facts.max_rows)
        self.info = EngineInfo(
            model_id=facts.model_id,
            context_tokens=facts.context_tokens,
            vocab_size=facts.vocab_size,
            max_seqs=facts.max_rows,
            cache_blocks=0,
            block_tokens=0,
            weight_bytes=facts.weight_bytes,
            fingerprint=facts.fingerprint,
            embedding_width=facts.width,
            memory_bytes=facts.memory_bytes,
        )

    @classmethod
    def over(cls, runtime: EmbeddingRuntime, settings: EngineSettings) -> EmbeddingCore:
        """An engine over a loaded model."""
        return cls(runtime, settings.max_queue)

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, for the start-up print."""
        return self._runtime.report

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Nothing but `embed` makes work here."""

    def teach(self, vocabulary: Vocabulary) -> None:
        """Constraints are for text: there is nothing to learn."""

    def submit(self, request: TokenRequest) -> None:
        """Raises InvalidRequest: the model writes nothing."""
        raise InvalidRequest(NO_TEXT, field="model", code="unsupported_model")

    def embed(self, request: EmbedRequest) -> None:
        """Queue a request. Raises InvalidRequest, ContextLengthExceeded or Overloaded."""
        if not request.sequences:
            raise InvalidRequest("input must not be empty", field="input")
        for sequence in request.sequences:
            self._check(sequence)
        if self._waiting >= self._max_queue:
            raise Overloaded(
                f"{self._waiting} inputs are waiting already; try again later", retry_after_s=1
            )
        self._jobs.append(_Job(request.id, deque(request.sequences)))
        self._waiting += len(request.sequences)

    def abort(self, request_id: str) -> None:
        """Drop a request, if it is still there; no chunk of it follows."""
        for job in self._jobs:
            if job.id == request_id:
                self._drop(job)
                self._gauges.completed_abort += 1
                return

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        """Fails: adapters are for models that write text."""
        refused: Future[AdapterState] = Future()
        refused.set_exception(AdapterRefused("lora_runtime_unavailable", NO_ADAPTERS))
        return refused

    def retire_adapter(self, generation: str) -> None:
        """There is none."""

    def adapters(self) -> tuple[AdapterState, ...]:
        return ()

    def step(self) -> list[EmbedChunk]:
        """Compute one step: a chunk for each request that had sequences in it."""
        jobs, sequences = self._pack()
        if not sequences:
            return []
        vectors = self._runtime.embed(sequences)
        self._gauges.tokens_processed += sum(map(len, sequences))
        rows: dict[str, list[int]] = {}
        for row, job in enumerate(jobs):
            rows.setdefault(job.id, []).append(row)
        by_id = {job.id: job for job in jobs}
        return [self._chunk(by_id[id], vectors[own]) for id, own in rows.items()]

    def gauges(self) -> EngineGauges:
        self._gauges.sequences_waiting = self._waiting
        return self._gauges

    def close(self) -> None:
        """Free the model's memory and threads."""
        self._runtime.close()

    def _check(self, sequence: tuple[int, ...]) -> None:
        info = self.info
        if not sequence:
            raise InvalidRequest("an input has no tokens", field="input")
        if len(sequence) > info.context_tokens:
            raise ContextLengthExceeded(
                f"an input has {len(sequence)} tokens; the model takes {info.context_tokens}",
                field="input",
            )
        if min(sequence) < 0 or max(sequence) >= info.vocab_size:
            raise InvalidRequest(
                f"token ids must be at least 0 and below {info.vocab_size}", field="input"
            )

    def _pack(self) -> tuple[list[_Job], list[tuple[int, ...]]]:
        """The next sequences, one of each request in turn, and whose they are. The first one that
        does not fit ends it: it will be the first of the next step."""
        left, facts = self._runtime.info.step_tokens, self._runtime.info
        jobs: list[_Job] = []
        sequences: list[tuple[int, ...]] = []
        turn = deque(self._jobs)
        while turn and len(sequences) < facts.max_rows and len(turn[0].waiting[0]) <= left:
            job = turn.popleft()
            sequence = job.waiting.popleft()
            left -= len(sequence)
            jobs.append(job)
            sequences.append(sequence)
            if job.waiting:
                turn.append(job)
        # Who was not served in this turn comes first in the next step.
        self._jobs = turn
        self._waiting -= len(sequences)
        return jobs, sequences

    def _chunk(
        self, job: _Job, vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    ) -> EmbedChunk:
        if not np.isfinite(vectors).all():
            if job.waiting:
                self._drop(job)
            self._gauges.completed_error += 1
            return EmbedChunk(job.id, b"", "error", NOT_FINITE)
        if job.waiting:
            return EmbedChunk(job.id, vectors.tobytes())
        self._gauges.completed_stop += 1
        return EmbedChunk(job.id, vectors.tobytes(), "stop")

    def _drop(self, job: _Job) -> None:
        self._jobs.remove(job)
        self._waiting -= len(job.waiting)
