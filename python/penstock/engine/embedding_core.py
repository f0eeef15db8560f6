"""The loop body of an engine that embeds or reranks: pack sequences into a step, compute it, return
the vectors."""

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
from penstock.engine.refusals import unsupported
from penstock.engine.types import (
    ENCODER_ADAPTERS,
    NO_ADAPTERS,
    NO_IMAGES,
    NO_SPEECH,
    NO_TEXT,
    AdapterSource,
    AdapterState,
    EmbedOutput,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    ImageRequest,
    SpeechRequest,
    TokenRequest,
)
from penstock.grammar.vocabulary import Vocabulary
from penstock.runtime.cpu.embedding import EmbeddingRuntime
from penstock.scheduler import NO_ADAPTER

Tokens: TypeAlias = tuple[int, ...]

NOT_FINITE = "the model gave no finite numbers for this request"


@dataclass(slots=True)
class _Job:
    """A request and its sequences that have not been computed yet.

    `waiting`: token ids of each sequence, and the start of its second text (its length if it has
    none).
    `adapter`: the leased adapter revision, "" for none.
    `slot`: the adapter's slot, NO_ADAPTER until the adapter is in memory.
    """

    id: str
    waiting: deque[tuple[Tokens, int]] = field(default_factory=deque)
    adapter: str = ""
    slot: int = NO_ADAPTER


class EmbeddingCore:
    """The engine of one loaded embedding model or reranker. Not thread-safe: one thread calls all
    methods.

    A step computes whole sequences, as many as its limits on tokens and rows allow. Requests take
    turns, one sequence each, so that a long request does not delay a short one. The vectors of a
    sequence do not depend on the other sequences of its step. A request whose adapter is not in
    memory waits until it is.

    `max_queue`: requests are accepted while fewer sequences than this wait.
    `lora`: the limits of adapters, None if adapters are off.
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
        """Return the engine of a loaded model."""
        return cls(runtime, settings.max_queue, settings.lora)

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, which is printed at start-up."""
        return self._runtime.report

    @property
    def has_work(self) -> bool:
        return bool(self._jobs) or self._adapters.has_completions

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Set `wake`, which another thread calls when an adapter has become ready, so that the
        engine has work again."""
        self._wake = wake

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Do nothing, because an embedding model has no constraints."""

    def submit(self, request: TokenRequest) -> None:
        """Refuse a request to generate text, because the model returns vectors. Always raises
        InvalidRequest."""
        raise unsupported(NO_TEXT)

    def speak(self, request: SpeechRequest) -> None:
        """Refuse a text to speak. Always raises InvalidRequest."""
        raise unsupported(NO_SPEECH)

    def paint(self, request: ImageRequest) -> None:
        """Refuse a request for images. Always raises InvalidRequest."""
        raise unsupported(NO_IMAGES)

    def embed(self, request: EmbedRequest) -> None:
        """Queue a request. Raises InvalidRequest (`adapter_not_found` for an unknown revision),
        ContextLengthExceeded or Overloaded."""
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
        """Drop a request if it has not finished; no more output of it follows."""
        for job in (*self._jobs, *self._held.values()):
            if job.id == request_id:
                self._drop(job)
                self._gauges.completed_abort += 1
                return

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        """Load an adapter revision in parallel with the steps. Return a future that completes at
        once or in a later `step`, or fails with AdapterRefused."""
        return self._adapters.add(source)

    def retire_adapter(self, revision: str) -> None:
        """Refuse a revision to new requests and free it after its last request. Do nothing if the
        revision is not loaded."""
        self._adapters.retire(revision)

    def adapters(self) -> tuple[AdapterState, ...]:
        """Return the state of every loaded revision, whether in memory or not."""
        return self._adapters.states()

    def step(self) -> list[EmbedOutput]:
        """Compute one step. Return one output for each request that had sequences in the step, and
        the last output of each request whose adapter could not be read."""
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
        """Return False, because there is nothing to prepare. See `Core.prepare`."""
        return False

    def close(self) -> None:
        """Free the model's memory and end its threads."""
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
        """Choose the sequences of the next step, one per request in turn. Return the job, the token
        ids and the start of the second text of each sequence. The first sequence that does not fit
        ends the step and comes first in the following step."""
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
        """Return whether a job can be computed: it has no adapter, or its adapter is in memory."""
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
        """Queue the requests whose adapters have been loaded. Return the last output of each
        request whose adapter could not be loaded."""
        news = self._adapters.collect()
        failures: list[EmbedOutput] = []
        for job in [job for job in self._held.values() if job.adapter in news]:
            error = news[job.adapter]
            if error is not None:
                failures.append(self._fail(job, str(error)))
            elif self._enter(job):
                self._jobs.append(self._held.pop(job.id))
        return failures
