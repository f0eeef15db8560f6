"""The interfaces of an engine: `Engine` for its callers, and `Core` for the thread that runs its
loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EmbedOutput,
    EmbedRequest,
    EngineGauges,
    EngineInfo,
    ImageOutput,
    ImageRequest,
    SpeechOutput,
    SpeechRequest,
    StepOutput,
    TokenOutput,
    TokenRequest,
)
from penstock.engine.weight_orders import WeightOrder, WeightsState
from penstock.grammar.vocabulary import Vocabulary


class OutputStream(Protocol):
    """The outputs of the requests of one `Engine.generate` call. It has one reader."""

    async def admitted(self) -> None:
        """Submit the requests and return when the engine has admitted them.

        Raises the error with which the engine refuses a request: Overloaded if the queue is full,
        InvalidRequest, Unavailable while the engine starts or restarts, EngineFault if the engine
        dies.
        """
        ...

    def __aiter__(self) -> OutputStream: ...

    async def __anext__(self) -> TokenOutput:
        """Return the next output of any of the requests. The last output of each request has
        `finish`; after the last outputs of all requests, StopAsyncIteration is raised. Raises the
        same errors as `admitted`, but first returns the outputs that were produced before the
        error."""
        ...

    def abort(self, request_id: str) -> None:
        """Drop one request; no more output of it follows."""
        ...

    async def aclose(self) -> None:
        """Abort the unfinished requests, which frees their rows."""
        ...


class Engine(Protocol):
    """A loaded model, in this process or another one. All methods are called from one asyncio
    loop."""

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, *requests: TokenRequest) -> OutputStream:
        """Return the stream of the outputs of `requests`, in the order in which they are produced.
        The requests are submitted when the stream is first read. The caller must close the stream.
        """
        ...

    def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedOutput]:
        """Yield the outputs of one embedding request. Closing the iterator early aborts the
        request. Raises the errors of `OutputStream.admitted`. An engine generates text, embeds,
        speaks or paints: the other methods raise InvalidRequest."""
        ...

    def speak(self, request: SpeechRequest) -> AsyncIterator[SpeechOutput]:
        """Yield the sound of a text, piece by piece. See `embed`."""
        ...

    def paint(self, request: ImageRequest) -> AsyncIterator[ImageOutput]:
        """Yield the images of one request. See `embed`."""
        ...

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Send the model's vocabulary to the engine, before the first request with a constraint.
        May be repeated. A restarted engine receives the vocabulary again automatically."""
        ...

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        """Load a revision and return when requests can use it, at once if it is loaded already.
        Raises AdapterRefused if its files or the limits do not allow the load, EngineFault if the
        engine dies meanwhile, and Unavailable while the engine starts or restarts."""
        ...

    async def retire_adapter(self, revision: str) -> None:
        """Refuse the revision to new requests; running requests go on with it. Do nothing if the
        revision is not loaded."""
        ...

    async def adapters(self) -> tuple[AdapterState, ...]: ...

    async def gauges(self) -> EngineGauges: ...

    async def change_weights(self, order: WeightOrder) -> WeightsState:
        """Carry out an order for the weights and return their state. Raises Conflict or Unavailable
        if the order cannot be carried out, and the errors of `add_adapter`."""
        ...


IDLE_S: Final = 0.005
"""Seconds without work or messages after which an engine starts to prepare for later steps."""


class Core(Protocol):
    """A loaded model and its request queue. All methods are called by one thread."""

    @property
    def info(self) -> EngineInfo: ...
    @property
    def report(self) -> str: ...
    @property
    def has_work(self) -> bool: ...
    def call_when_ready(self, wake: Callable[[], None]) -> None: ...
    def set_tokenizer(self, vocabulary: Vocabulary) -> None: ...
    def submit(self, request: TokenRequest) -> None: ...
    def embed(self, request: EmbedRequest) -> None: ...
    def speak(self, request: SpeechRequest) -> None: ...
    def paint(self, request: ImageRequest) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]: ...
    def retire_adapter(self, revision: str) -> None: ...
    def change_weights(self, order: WeightOrder) -> Future[WeightsState]: ...
    def adapters(self) -> tuple[AdapterState, ...]: ...
    def step(self) -> Sequence[StepOutput]: ...
    def gauges(self) -> EngineGauges: ...
    def prepare(self) -> bool:
        """Do a short piece of work for later steps while the engine is idle. Return False if there
        is none left until after the next step."""
        ...

    def close(self) -> None: ...
