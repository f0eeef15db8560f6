"""The interfaces of an engine: to its callers (`Engine`), and of the model inside it to the thread
that drives it (`Core`)."""

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
    TokenOutput,
    TokenRequest,
)
from penstock.grammar.vocabulary import Vocabulary


class OutputStream(Protocol):
    """The outputs of the requests of one `Engine.generate` call. It has one reader."""

    async def admitted(self) -> None:
        """Submit the requests; return when the engine has admitted them.

        Raises what the engine refuses with: Overloaded when the queue is full, InvalidRequest,
        Unavailable while the engine (re)starts, EngineFault if it dies.
        """
        ...

    def __aiter__(self) -> OutputStream: ...

    async def __anext__(self) -> TokenOutput:
        """Return the next output. It ends after the output with `finish` of every request. Raises
        as `admitted` does; outputs that were made before an error come before it."""
        ...

    def abort(self, request_id: str) -> None:
        """Drop one request; no output of it follows."""
        ...

    async def aclose(self) -> None:
        """Abort the requests that have not finished, and free their rows."""
        ...


class Engine(Protocol):
    """A loaded model, wherever it runs. All methods are called from one asyncio loop."""

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, *requests: TokenRequest) -> OutputStream:
        """Return the outputs of requests, in the order in which they arrive. The requests are
        submitted when the stream is first read; close it in any case."""
        ...

    def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedOutput]:
        """Yield the outputs of one embedding request. Closing the iterator early aborts it. Raises
        as `OutputStream` does. An engine either generates or embeds, and raises InvalidRequest for
        the other."""
        ...

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Send the model's vocabulary to the engine, before the first request with a constraint.
        Harmless when repeated. A restarted engine gets it again automatically."""
        ...

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        """Return when the revision can be used, at once if it is loaded already. Raises
        AdapterRefused for its files and limits, EngineFault if the engine dies meanwhile,
        Unavailable while it (re)starts."""
        ...

    async def retire_adapter(self, revision: str) -> None:
        """Give the revision to no new request; running ones go on. Harmless if it is not loaded."""
        ...

    async def adapters(self) -> tuple[AdapterState, ...]: ...

    async def gauges(self) -> EngineGauges: ...


IDLE_S: Final = 0.005
"""After this idle time an engine prepares for later steps until something arrives."""


class Core(Protocol):
    """A loaded model and its queue. All methods are called by one thread."""

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
    def abort(self, request_id: str) -> None: ...
    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]: ...
    def retire_adapter(self, revision: str) -> None: ...
    def adapters(self) -> tuple[AdapterState, ...]: ...
    def step(self) -> Sequence[TokenOutput | EmbedOutput]: ...
    def gauges(self) -> EngineGauges: ...
    def prepare(self) -> bool:
        """Do a short piece of work ahead of later steps while the engine is idle. Return False if
        there is none, and none until after the next step."""
        ...

    def close(self) -> None: ...
