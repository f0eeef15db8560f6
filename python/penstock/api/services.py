"""What the routes work with. Built once per API process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Protocol

from penstock.api.access_log import AccessLog
from penstock.api.body import BodyReader
from penstock.api.context import Observers
from penstock.api.metrics import Metrics
from penstock.api.response_runs import ResponseRuns
from penstock.base.errors import NotFound
from penstock.config import ServerSettings
from penstock.dialog import EmbeddingRequest, Embeddings, Event, GenerateRequest
from penstock.engine.protocol import Engine

if TYPE_CHECKING:
    from penstock.store import Store

DEFAULT_MODEL = "default"
MAX_SHOWN_CHARS = 80


class Loop(Protocol):
    """What answers requests: the turn loop of one model."""

    def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """The events of one run; closing the generator aborts it."""
        ...

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """The request with its files stored, and shown as texts. Raises as `run` fails."""
        ...

    async def count(self, request: GenerateRequest) -> int:
        """How many tokens the prompt of a request has. Raises as `run` fails."""
        ...

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """The vectors of texts; cancelling it aborts them."""
        ...


@dataclass(frozen=True)
class Services:
    """`models`: model id -> its loop; the first one is the default. `metrics` None: switched off.

    `engine` gives the gauges and the fingerprint. `store`: what outlives a request; shared with the
    other API processes.
    """

    models: Mapping[str, Loop]
    engine: Engine
    store: Store
    settings: ServerSettings
    metrics: Metrics | None
    created: int = field(default_factory=lambda: int(time()))
    observers: Observers = field(init=False)
    bodies: BodyReader = field(init=False)
    runs: ResponseRuns = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        form = settings.access_log_format
        access_log = None if settings.disable_access_log else AccessLog(form)
        observers = Observers(self.metrics, access_log, log_housekeeping=settings.access_log_health)
        object.__setattr__(self, "observers", observers)
        bodies = BodyReader(settings.body_limit_bytes, settings.stall_timeout_s)
        object.__setattr__(self, "bodies", bodies)
        object.__setattr__(self, "runs", ResponseRuns(self.store.responses))

    async def close(self) -> None:
        """Stop what works on without a request. The store is closed by whoever opened it."""
        await self.runs.close()

    def resolve(self, name: str | None) -> str:
        """The id of a model that a request names. Raises NotFound (`model_not_found`)."""
        if name is None or name == DEFAULT_MODEL:
            return next(iter(self.models))
        if name in self.models:
            return name
        shown = name if len(name) <= MAX_SHOWN_CHARS else name[:MAX_SHOWN_CHARS] + "..."
        available = ", ".join(self.models)
        raise NotFound(
            f"Requested model '{shown}' is not available. Available models: {available}. "
            "Use 'default' to use the default model.",
            field="model",
            code="model_not_found",
        )
