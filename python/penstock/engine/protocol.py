"""What an engine is to its callers, wherever it runs: in a thread, in a process, on a machine; and
what is inside it: the core that its thread drives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Protocol

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

if TYPE_CHECKING:
    from penstock._native import Lane


class Tap(Protocol):
    """Is shown chunks in the moment they arrive."""

    def __call__(self, chunk: TokenOutput) -> TokenOutput | None:
        """What is left for the iterator."""
        ...

    def lane(self) -> Lane | None:
        """After a chunk of which nothing was left: who takes the tokens that follow, as long as
        they are plain. None: they are shown."""
        ...

    def leave(self) -> None:
        """The lane is closed. What went through it is to be accounted for, before the next chunk
        and before the end."""
        ...


class Engine(Protocol):
    """All methods are called from one asyncio loop."""

    @property
    def info(self) -> EngineInfo: ...

    def generate(self, request: TokenRequest, tap: Tap | None = None) -> AsyncIterator[TokenOutput]:
        """The chunks of one request, the last with `finish`.

        An engine may show `tap` chunks between the first token and the last chunk, while the
        iterator's reader waits: it costs a call, where waking the reader costs a turn of the loop.

        Closing the iterator early (`aclose`, cancellation) aborts the request and frees its row.
        Raises Overloaded when the queue is full, Unavailable while the engine (re)starts,
        EngineFault when the engine process died under the request.
        """
        ...

    def embed(self, request: EmbedRequest) -> AsyncIterator[EmbedOutput]:
        """The same of a request for embeddings. An engine does either; it raises InvalidRequest for
        what its model does not do."""
        ...

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Tell the engine the model's tokenizer, before the first request with a constraint.
        Harmless when told twice; an engine that was restarted is told again by itself."""
        ...

    async def add_adapter(self, source: AdapterSource) -> AdapterState:
        """Return when the revision can be used; one that is there already is there. Raises
        AdapterRefused for its files and limits, EngineFault where the engine died over it,
        Unavailable while it (re)starts."""
        ...

    async def retire_adapter(self, revision: str) -> None:
        """No new request gets it; running ones go on. Harmless for one that is not there."""
        ...

    async def adapters(self) -> tuple[AdapterState, ...]: ...

    async def gauges(self) -> EngineGauges: ...


IDLE_S: Final = 0.005
"""An engine with nothing to do for so long prepares itself for later steps, until news come."""


class Core(Protocol):
    """A loaded model and its queue. One thread calls all of it."""

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
        """A short piece of work ahead of later steps, while there is no other. False: there
        was none, nor will be until after the next step."""
        ...

    def close(self) -> None: ...
