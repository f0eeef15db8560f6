"""The tasks that a server's parent process gives to its API processes."""

from __future__ import annotations

import msgspec

from penstock.config import ModelSettings, ServerSettings


class ModelTask(msgspec.Struct, frozen=True):
    """A model to serve, and the Unix socket of its engine while the engine runs."""

    settings: ModelSettings
    socket_path: str


class ApiTask(msgspec.Struct, frozen=True):
    """The task of one API process. `metrics_dir`: a folder shared with the other API processes;
    None: there are none."""

    models: tuple[ModelTask, ...]
    default_model_id: str | None
    server: ServerSettings
    metrics_dir: str | None = None


class WorkerTask(msgspec.Struct, frozen=True):
    """The task of an API worker. `listener`: the inherited file descriptor of the socket that
    reserves the address; the worker binds its own socket to the same address."""

    api: ApiTask
    listener: int
