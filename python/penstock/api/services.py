"""The objects that all routes share. Built once per API process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING

from penstock.api.chats.answer_runs import AnswerRuns
from penstock.api.codecs.request_fields.openai_compat import FULL_COMPAT, NO_COMPAT, OpenAICompat
from penstock.api.http.request_body import BodyReader
from penstock.api.models.downloads import Downloads, Progress
from penstock.api.models.model_catalog import ModelCatalog
from penstock.api.models.served_model import ModelControl
from penstock.api.observability.access_log import AccessLog
from penstock.api.observability.metrics import Metrics
from penstock.api.observability.request_context import RequestObservers
from penstock.api.responses.response_runs import ResponseRuns
from penstock.config import ServerSettings, read_environment
from penstock.tune.process import Tuner

if TYPE_CHECKING:
    from penstock.agent.server_tools import ServerTools
    from penstock.store import Store
    from penstock.store.lazy_store import LazyStore


@dataclass(frozen=True)
class Services:
    """The objects that all routes share.

    `models`: model id -> model.
    `control`: loads and unloads models and adapters.
    `store`: the database and files, shared with the other API processes.
    `metrics`: None if metrics are disabled.
    `adapter_updates`: True if clients may load and unload adapters.
    `tools`: the tools that the server runs, None for none.
    `tuner`: measures models.
    `created`: the time at which the server started, in Unix seconds.
    """

    models: ModelCatalog
    control: ModelControl
    store: Store | LazyStore
    settings: ServerSettings
    metrics: Metrics | None
    adapter_updates: bool = False
    tools: ServerTools | None = None
    created: int = field(default_factory=lambda: int(time()))
    observers: RequestObservers = field(init=False)
    bodies: BodyReader = field(init=False)
    runs: ResponseRuns = field(init=False)
    answers: AnswerRuns = field(init=False)
    downloads: Downloads = field(init=False)
    tuner: Tuner = field(default_factory=Tuner)

    def __post_init__(self) -> None:
        settings = self.settings
        access_log = None if settings.disable_access_log else AccessLog(settings.access_log_format)
        observers = RequestObservers(
            self.metrics, access_log, log_housekeeping=settings.access_log_health
        )
        object.__setattr__(self, "observers", observers)
        bodies = BodyReader(settings.body_limit_bytes, settings.stall_timeout_s)
        object.__setattr__(self, "bodies", bodies)
        object.__setattr__(self, "runs", ResponseRuns(self.store))
        answers = AnswerRuns(self.store, self.models, self.compat)
        object.__setattr__(self, "answers", answers)
        object.__setattr__(self, "downloads", Downloads(_download))

    @property
    def compat(self) -> OpenAICompat:
        """The restricted fields of OpenAI's API that requests may use (`--openai-compat`)."""
        return FULL_COMPAT if self.settings.openai_compat else NO_COMPAT

    async def close(self) -> None:
        """Stop the background responses, the answers of chats and the downloads. The store stays
        open: the caller closes it."""
        await asyncio.gather(self.runs.close(), self.answers.close(), self.downloads.close())

    def resolve(self, name: str | None) -> str:
        """Return the id of the model that a request names. Raises NotFound (`model_not_found`)."""
        return self.models.resolve(name)


def _download(model: str, progress: Progress) -> None:
    """Download a model into the cache of this machine. Raises ModelError."""
    from penstock.models.hub.hub_access import hub_access_of
    from penstock.models.hub.sources import resolve_model

    environment = read_environment()
    resolve_model(model, environment.home, hub_access_of(environment), progress)
