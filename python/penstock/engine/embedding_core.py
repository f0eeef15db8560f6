"""The loop body of an engine that embeds or reranks: pack sequences into a step, compute it, return
the vectors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import msgspec
import numpy as np

from penstock.base.errors import Overloaded
from penstock.config import EngineSettings, LoraSettings
from penstock.engine.adapters.null_slot_cache import slot_cache_for
from penstock.engine.embedding_jobs import EmbeddingJob, EmbeddingSequence, sequences_of
from penstock.engine.media.encode_queue import EncodeQueue
from penstock.engine.media.encoder_cache import EncoderCache
from penstock.engine.media.prompt_media import kinds_of
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
from penstock.engine.weight_orders import WeightOrder, WeightsState, refused_order
from penstock.grammar.vocabulary import Vocabulary
from penstock.runtime.cpu.embedding import EmbeddingRuntime
from penstock.scheduler import NO_ADAPTER

NOT_FINITE: Final = "the model gave no finite numbers for this request"


class EmbeddingCore:
    """The engine of one loaded embedding model or reranker. Not thread-safe: one thread calls all
    methods.

    A step computes whole sequences, as many as its limits on tokens and rows allow. Requests take
    turns, one sequence each, so that a long request does not delay a short one. The vectors of a
    sequence do not depend on the other sequences of its step. A request whose adapter is not in
    memory waits until it is, and a sequence until its media are encoded.

    `max_queue`: requests are accepted while fewer sequences than this wait.
    `lora`: the limits of adapters, None if adapters are off.
    `encoder_cache_bytes`: most memory of encoded media.
    """

    def __init__(
        self,
        runtime: EmbeddingRuntime,
        max_queue: int,
        lora: LoraSettings | None = None,
        encoder_cache_bytes: int = 0,
    ) -> None:
        facts = runtime.info
        self._runtime = runtime
        self._max_queue = max_queue
        self._jobs: deque[EmbeddingJob] = deque()
        self._held: dict[str, EmbeddingJob] = {}
        self._wake: Callable[[], None] = lambda: None
        reason = NO_ADAPTERS if lora is None else ENCODER_ADAPTERS
        self._adapters = slot_cache_for(runtime.adapters, lora, lambda: self._wake(), reason)
        self._waiting = 0
        self._media: EncodeQueue | None = None
        if runtime.media is not None:
            self._media = EncodeQueue(
                runtime.media, EncoderCache(runtime.media, encoder_cache_bytes)
            )
        self._last_step_s = 0.0
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
            media_kinds=kinds_of(runtime.media),
        )

    @classmethod
    def for_runtime(cls, runtime: EmbeddingRuntime, settings: EngineSettings) -> EmbeddingCore:
        """Return the engine of a loaded model."""
        return cls(runtime, settings.max_queue, settings.lora, settings.encoder_cache_mb << 20)

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, which is printed at start-up."""
        return self._runtime.report

    @property
    def has_work(self) -> bool:
        if self._adapters.has_completions or any(job.encoded for job in self._jobs):
            return True
        return self._media is not None and self._media.has_work

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
        sequences = sequences_of(request, self.info, self._media, self._runtime.info.lone_kinds)
        if self._waiting >= self._max_queue:
            raise Overloaded(
                f"{self._waiting} inputs are waiting already; try again later", retry_after_s=1
            )
        job = EmbeddingJob(request.id, deque(sequences), request.adapter)
        if job.adapter:
            self._adapters.lease(job.adapter)
        self._waiting += len(job.waiting)
        self._enter_media(job)
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

    def change_weights(self, order: WeightOrder) -> Future[WeightsState]:
        """Refuse an order for the weights: return a future that has failed with Conflict."""
        return refused_order()

    def retire_adapter(self, revision: str) -> None:
        """Refuse a revision to new requests and free it after its last request. Do nothing if the
        revision is not loaded."""
        self._adapters.retire(revision)

    def adapters(self) -> tuple[AdapterState, ...]:
        """Return the state of every loaded revision, whether in memory or not."""
        return self._adapters.states()

    def step(self) -> list[EmbedOutput]:
        """Encode media for as long as the last step took, and compute one step. Return one output
        for each request that had sequences in the step, and the last output of each request whose
        adapter could not be read or whose media cannot be encoded."""
        failures = self._release_ready() + self._encode_media()
        jobs, sequences = self._pack()
        if not sequences:
            return failures
        began = time.monotonic()
        tokens = [one.tokens for one in sequences]
        media = [one.media for one in sequences]
        vectors = self._runtime.embed(
            tokens,
            [job.slot for job in jobs],
            [one.second_start for one in sequences],
            media if any(one.items for one in sequences) else (),
        )
        by_id = {job.id: job for job in jobs}
        for job in by_id.values():
            self._enter_media(job)
        self._last_step_s = time.monotonic() - began
        self._gauges.tokens_processed += sum(map(len, tokens))
        rows: dict[str, list[int]] = {}
        for row, job in enumerate(jobs):
            rows.setdefault(job.id, []).append(row)
        return failures + [self._chunk(by_id[id], vectors[own]) for id, own in rows.items()]

    def gauges(self) -> EngineGauges:
        gauges = msgspec.structs.replace(self._gauges, sequences_waiting=self._waiting)
        if self._media is not None:
            self._media.report(gauges)
        return gauges

    def prepare(self) -> bool:
        """Return False, because there is nothing to prepare. See `Core.prepare`."""
        return False

    def close(self) -> None:
        """Free the model's memory and end its threads."""
        self._adapters.close()
        self._runtime.close()

    def _pack(self) -> tuple[list[EmbeddingJob], list[EmbeddingSequence]]:
        """Choose the sequences of the next step, one per request in turn. Return the job of each
        sequence, and the sequences. The first sequence that does not fit ends the step and comes
        first in the following step. Requests whose next media are not encoded are passed over."""
        left, facts = self._runtime.info.step_tokens, self._runtime.info
        jobs: list[EmbeddingJob] = []
        sequences: list[EmbeddingSequence] = []
        turn = deque(job for job in self._jobs if job.encoded)
        stalled = [job for job in self._jobs if not job.encoded]
        while turn and len(sequences) < facts.max_rows and len(turn[0].waiting[0].tokens) <= left:
            job = turn.popleft()
            sequence = job.waiting.popleft()
            left -= len(sequence.tokens)
            jobs.append(job)
            sequences.append(sequence)
            if job.waiting:
                # The runtime reads encoded media in the step: the next sequence is for a later one.
                (stalled if sequence.items or job.waiting[0].items else turn).append(job)
        # Jobs that had no turn come first in the next step.
        self._jobs = turn + deque(stalled)
        self._waiting -= len(sequences)
        return jobs, sequences

    def _encode_media(self) -> list[EmbedOutput]:
        """Encode media of waiting sequences: one large piece, or about as long as the last step
        took if sequences can be computed. Return the last output of each request whose media cannot
        be encoded."""
        if self._media is None or not self._media.has_work:
            return []
        computes = any(job.encoded for job in self._jobs)
        news = self._media.advance(self._last_step_s if computes else None)
        failures: list[EmbedOutput] = []
        for job in [job for job in (*self._jobs, *self._held.values()) if job.id in news]:
            error = news[job.id]
            job.encoded = error is None
            if error is not None:
                failures.append(self._fail(job, error))
        return failures

    def _enter_media(self, job: EmbeddingJob) -> None:
        """Encode the media of the job's first waiting sequence. One sequence at a time: later ones
        must not hold encoded media that leave no room for it."""
        if self._media is not None:
            self._media.leave(job.id)
            if job.waiting:
                job.encoded = self._media.enter(job.id, job.waiting[0].items)

    def _chunk(
        self, job: EmbeddingJob, vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    ) -> EmbedOutput:
        if not np.isfinite(vectors).all():
            return self._fail(job, NOT_FINITE)
        if job.waiting:
            return EmbedOutput(job.id, vectors.tobytes())
        self._release(job)
        self._gauges.completed_stop += 1
        return EmbedOutput(job.id, vectors.tobytes(), "stop")

    def _fail(self, job: EmbeddingJob, reason: str) -> EmbedOutput:
        self._drop(job)
        self._gauges.completed_error += 1
        return EmbedOutput(job.id, b"", "error", reason)

    def _drop(self, job: EmbeddingJob) -> None:
        if self._held.pop(job.id, None) is None and job.waiting:
            self._jobs.remove(job)
        if self._media is not None:
            self._media.leave(job.id)
        self._waiting -= len(job.waiting)
        self._release(job)

    def _enter(self, job: EmbeddingJob) -> bool:
        """Return whether a job can be computed: it has no adapter, or its adapter is in memory."""
        if not job.adapter:
            return True
        slot = self._adapters.enter(job.adapter)
        if slot is not None:
            job.slot = slot
        return slot is not None

    def _release(self, job: EmbeddingJob) -> None:
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
