"""How an API process has models loaded and unloaded: by the fleet of its own process, or, in one of
several workers, over the pipes to its parent.

The pipes are the worker's standard input and output, a line of JSON a message. They exist anyway
(the worker ends with its input), belong to nobody else, and break with either process; a socket or
a table would have to be named, guarded and cleaned up.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Literal

import msgspec

from penstock.base.errors import ModelError, Unavailable
from penstock.engine.fleet import EngineFleet, ModelState

log = logging.getLogger(__name__)

Action = Literal["load", "unload"]


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """From a worker: it serves."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """From a worker: it cannot serve; it ends."""

    text: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """From a worker: load or unload a model. `number` comes back in the answer."""

    number: int
    action: Action
    model: str


class Told(msgspec.Struct, frozen=True, tag="told"):
    """To a worker: the states of all models."""

    states: dict[str, ModelState]


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """To a worker: what it asked for is done, or could not be."""

    number: int
    done: bool


FromWorker = Ready | Failed | Ask
ToWorker = Told | Answered

from_worker_decoder: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
to_worker_decoder: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)


def line_of(message: msgspec.Struct) -> bytes:
    """A message as it goes through the pipe."""
    return msgspec.json.encode(message) + b"\n"


def load_failed(model: str) -> Unavailable:
    """The answer for a model whose engine does not start; the parent's log has the reason."""
    return Unavailable(f"the model '{model}' could not be loaded", code="model_load_failed")


class FleetControl:
    """Of the API process that shares its process with the fleet."""

    def __init__(self, fleet: EngineFleet) -> None:
        self._fleet = fleet

    async def load(self, model: str) -> None:
        try:
            await self._fleet.load(model)
        except ModelError as error:
            log.error("model %s cannot be loaded: %s", model, error)
            raise load_failed(model) from None

    async def unload(self, model: str) -> None:
        await self._fleet.unload(model)


class PipeControl:
    """Of a worker. `write` sends a message to the parent."""

    def __init__(self, write: Callable[[FromWorker], None]) -> None:
        self._write = write
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bool]] = {}

    async def load(self, model: str) -> None:
        if not await self._ask("load", model):
            raise load_failed(model)

    async def unload(self, model: str) -> None:
        await self._ask("unload", model)

    def answered(self, answer: Answered) -> None:
        """Take in what the parent answered."""
        waiter = self._waiting.get(answer.number)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer.done)

    async def _ask(self, action: Action, model: str) -> bool:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._write(Ask(number, action, model))
        try:
            return await self._waiting[number]
        finally:
            del self._waiting[number]


async def obey(fleet: EngineFleet, ask: Ask) -> Answered:
    """In the parent: do what a worker asks for."""
    try:
        if ask.action == "load":
            await fleet.load(ask.model)
        else:
            await fleet.unload(ask.model)
    except ModelError as error:
        log.error("model %s cannot be loaded: %s", ask.model, error)
        return Answered(ask.number, done=False)
    return Answered(ask.number, done=True)
