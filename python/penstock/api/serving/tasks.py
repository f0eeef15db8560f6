"""The tasks that the parent process of a server gives to its API processes."""

from __future__ import annotations

import msgspec

from penstock.config import ModelSettings, ServerSettings


class ModelTask(msgspec.Struct, frozen=True):
    """A model to serve.

    `socket_path`: the Unix socket on which the model's engine listens while it runs.
    """

    settings: ModelSettings
    socket_path: str


class ApiTask(msgspec.Struct, frozen=True):
    """The task of one API process.

    `models`: the models to serve.
    `default_model_id`: the model of requests for "default"; None: see `ModelCatalog`.
    `server`: the settings of the HTTP server.
    `metrics_dir`: the folder of metrics files, shared with the other API processes; None if there
    is only one process.
    """

    models: tuple[ModelTask, ...]
    default_model_id: str | None
    server: ServerSettings
    metrics_dir: str | None = None


class WorkerTask(msgspec.Struct, frozen=True):
    """The task of an API worker.

    `listener`: the inherited file descriptor of the socket that reserves the address. The worker
    binds its own socket to the same address.
    """

    api: ApiTask
    listener: int
