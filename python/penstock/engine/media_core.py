"""The loop body of an engine that makes speech or images: compute one piece per step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec

from penstock.base.errors import Overloaded
from penstock.engine.adapters.null_slot_cache import NullSlotCache
from penstock.engine.image_maker import ImageMaker
from penstock.engine.refusals import unsupported
from penstock.engine.speech_maker import SpeechMaker
from penstock.engine.types import (
    MEDIA_ADAPTERS,
    NO_EMBEDDINGS,
    NO_IMAGES,
    NO_SPEECH,
    NO_TEXT,
    AdapterSource,
    AdapterState,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    ImageOutput,
    ImageRequest,
    SpeechOutput,
    SpeechRequest,
    TokenRequest,
)
from penstock.engine.weight_orders import WeightOrder, WeightsState, refused_order
from penstock.grammar.vocabulary import Vocabulary

log = logging.getLogger(__name__)

MediaOutput: TypeAlias = SpeechOutput | ImageOutput
Steps: TypeAlias = Generator[MediaOutput | None, None, None]

FAILED: Final = "the model failed at this request"
FAILURES: Final = (RuntimeError, MemoryError, ValueError, LookupError)
"""Errors that the libraries of models raise, also that of a full GPU."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A request under way. `steps`: each `next` computes one step, and closing it drops the
    request."""

    id: str
    steps: Steps


class MediaCore:
    """The engine of one loaded model that makes speech or images. Not thread-safe: one thread calls
    all methods.

    A step computes one piece of one request: a sentence of speech, or one denoising step of an
    image. Requests take turns after each output, so that a long text does not delay a short one,
    and an image is finished before the next one begins. A step that fails ends only its request.

    `max_queue`: requests are accepted while fewer requests than this are open.
    """

    def __init__(self, maker: SpeechMaker | ImageMaker, max_queue: int) -> None:
        self._maker = maker
        self._max_queue = max_queue
        self._jobs: deque[_Job] = deque()
        self._adapters = NullSlotCache(MEDIA_ADAPTERS)
        self._gauges = EngineGauges(sequences_capacity=1)
        self.info: EngineInfo = maker.info

    @property
    def report(self) -> str:
        """The memory that the model needs, which is printed at start-up."""
        return self._maker.report

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        """Do nothing, because no other thread makes work for this engine."""

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Do nothing, because the model has no constraints."""

    def submit(self, request: TokenRequest) -> None:
        """Refuse a request to generate text. Always raises InvalidRequest."""
        raise unsupported(NO_TEXT)

    def embed(self, request: EmbedRequest) -> None:
        """Refuse a request for embeddings. Always raises InvalidRequest."""
        raise unsupported(NO_EMBEDDINGS)

    def speak(self, request: SpeechRequest) -> None:
        """Queue a text to speak. Raises InvalidRequest (`unpronounceable_input` for a text without
        sounds, `unsupported_model` if the model does not speak) or Overloaded."""
        if not isinstance(self._maker, SpeechMaker):
            raise unsupported(NO_SPEECH)
        self._check_room()
        self._jobs.append(_Job(request.id, self._maker.start(request)))

    def paint(self, request: ImageRequest) -> None:
        """Queue images. Raises InvalidRequest (`unsupported_model` if the model makes no images) or
        Overloaded."""
        if not isinstance(self._maker, ImageMaker):
            raise unsupported(NO_IMAGES)
        self._check_room()
        self._jobs.append(_Job(request.id, self._maker.start(request)))

    def abort(self, request_id: str) -> None:
        """Drop a request if it has not finished; no more output of it follows."""
        for job in self._jobs:
            if job.id == request_id:
                self._jobs.remove(job)
                job.steps.close()
                self._gauges.completed_abort += 1
                return

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        """Refuse an adapter: return a future that has failed with AdapterRefused."""
        return self._adapters.add(source)

    def change_weights(self, order: WeightOrder) -> Future[WeightsState]:
        """Refuse an order for the weights: return a future that has failed with Conflict."""
        return refused_order()

    def retire_adapter(self, revision: str) -> None:
        """Do nothing, because there are no adapters."""

    def adapters(self) -> tuple[AdapterState, ...]:
        return ()

    def step(self) -> list[MediaOutput]:
        """Compute one step of the request whose turn it is. Return its output, if the step
        completed one."""
        job = self._jobs[0]
        output = self._next(job)
        if output is None:
            return []
        self._jobs.popleft()
        if output.finish is None:
            self._jobs.append(job)
        elif output.finish == "error":
            self._gauges.completed_error += 1
        else:
            self._gauges.completed_stop += 1
        return [output]

    def gauges(self) -> EngineGauges:
        running = min(1, len(self._jobs))
        return msgspec.structs.replace(
            self._gauges,
            sequences_running=running,
            sequences_waiting=len(self._jobs) - running,
        )

    def prepare(self) -> bool:
        """Return False, because there is nothing to prepare. See `Core.prepare`."""
        return False

    def close(self) -> None:
        """Drop all requests and free the model's memory."""
        for job in self._jobs:
            job.steps.close()
        self._jobs.clear()
        self._maker.close()

    def _next(self, job: _Job) -> MediaOutput | None:
        try:
            return next(job.steps)
        except FAILURES:
            log.exception("request %s failed", job.id)
            return self._maker.failure(job.id, FAILED)

    def _check_room(self) -> None:
        if len(self._jobs) >= self._max_queue:
            raise Overloaded(
                f"{len(self._jobs)} requests are waiting already; try again later", retry_after_s=1
            )
