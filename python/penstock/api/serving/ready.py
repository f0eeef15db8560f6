"""Describes a server that is ready to answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock import __version__
from penstock.api.serving.sockets import listening_note, url_of
from penstock.base.resources import available_cores
from penstock.config import ServingSettings
from penstock.engine.types import EngineInfo


@dataclass(frozen=True)
class Ready:
    """A server that is ready.

    - `settings`: its settings.
    - `url`: the URL at which clients on this machine reach it.
    - `listening`: a note if it listens on all addresses, else "".
    - `infos`: model id -> the engine's description; None: the model is not loaded.
    """

    settings: ServingSettings
    url: str
    listening: str
    infos: Mapping[str, EngineInfo | None]

    @property
    def line(self) -> str:
        """The line that tells operators and scripts that the server is ready."""
        return f"{self.headline} ({self.listening}{self.served})"

    @property
    def headline(self) -> str:
        """The version and the URL."""
        return f"Penstock {__version__} ready on {self.url}"

    @property
    def served(self) -> str:
        """The models, the cores that they use, and the context of a single model."""
        models = self.settings.models
        count = models[0].engine.threads or available_cores()
        cores = "1 core" if count == 1 else f"{count} cores"
        only = self.infos[models[0].id]
        if len(models) == 1 and only is not None:
            context = only.max_model_len
            return f"model {models[0].id}, {cores}" + (f", context {context}" if context else "")
        names = (f"{m.id} on demand" if m.on_demand else m.id for m in models)
        return f"models {', '.join(names)}, {cores}"


Announce = Callable[[Ready], None]


def ready_server(
    settings: ServingSettings,
    info: Callable[[str], EngineInfo | None],
    bound: socket.socket,
) -> Ready:
    """Return the description of a server. `info`: returns the engine's description of a model.
    `bound`: the listening socket."""
    infos = {model.id: info(model.id) for model in settings.models}
    return Ready(settings, url_of(bound), listening_note(bound), infos)
