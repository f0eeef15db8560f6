"""What API processes are told by the process that starts them."""

from __future__ import annotations

import msgspec

from penstock.config import ModelSettings, ServerSettings


class ModelTask(msgspec.Struct, frozen=True):
    """One model to serve, and where its engine does whenever it runs."""

    settings: ModelSettings
    socket_path: str


class ApiTask(msgspec.Struct, frozen=True):
    """One API process. `metrics_dir`: shared with the other ones, None if there are none."""

    models: tuple[ModelTask, ...]
    default_model_id: str | None
    server: ServerSettings
    metrics_dir: str | None = None


class WorkerTask(msgspec.Struct, frozen=True):
    """One of several API processes. `listener`: the number of the socket that it inherits, which
    keeps the address at which it binds its own."""

    api: ApiTask
    listener: int
