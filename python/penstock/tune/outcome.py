"""A job for the process that tunes, and its outcome."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from penstock.config import EngineSettings
from penstock.tune.types import TuneModelRequest, TuneModelResponse


class TuneJob(Struct, frozen=True):
    """A request to tune.

    - `engine`: the settings of the engine that the request does not concern; `engine.model` is the
      model.
    - `model_id`: the name of the model in the result.
    - `origin`: "client": `engine.model` is no path, unless `is_served`, and the token source reads
      nothing of this machine.
    - `is_served`: the model is one of this server's.
    - `held_bytes`: memory of an engine that the tuned one would replace.
    """

    request: TuneModelRequest
    engine: EngineSettings
    model_id: str
    origin: Literal["operator", "client"] = "operator"
    is_served: bool = False
    held_bytes: int = 0


class Failure(Struct, frozen=True):
    """The fields of a ServiceError."""

    status: int
    kind: str
    code: str
    message: str
    field: str | None
    retry_after_s: int | None


class Outcome(Struct, frozen=True):
    """The result of a job. One of both is None."""

    response: TuneModelResponse | None = None
    failure: Failure | None = None
