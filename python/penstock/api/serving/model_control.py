"""How an API process has models and adapters loaded and unloaded: by the fleet of its own process,
or, in one of several workers, over the pipes to its parent.

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

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.registry import LoadedAdapter
from penstock.base.errors import ModelError, ServiceError, Unavailable
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.processes.fleet import EngineFleet, ModelState
from penstock.models.loader.sampling_defaults import SamplingDefaults

log = logging.getLogger(__name__)

Action = Literal["load", "unload"]


class WorkerReady(msgspec.Struct, frozen=True, tag="ready"):
    """From a worker: it serves. `sampling`: model id -> its defaults, of those that are loaded."""

    sampling: dict[str, SamplingDefaults] = {}


class WorkerFailed(msgspec.Struct, frozen=True, tag="failed"):
    """From a worker: it cannot serve; it ends."""

    text: str


class ModelCommand(msgspec.Struct, frozen=True, tag="ask"):
    """From a worker: load or unload a model. `number` comes back in the answer."""

    number: int
    action: Action
    model: str


class LoadAdapterCommand(msgspec.Struct, frozen=True, tag="ask_load"):
    """From a worker: load an adapter."""

    number: int
    model: str
    order: AdapterLoadRequest


class UnloadAdapterCommand(msgspec.Struct, frozen=True, tag="ask_unload"):
    """From a worker: forget an adapter."""

    number: int
    model: str
    alias: str
    expected: str | None


class SyncCommand(msgspec.Struct, frozen=True, tag="ask_news"):
    """From a worker: the answer comes after all that there was to tell."""

    number: int


class AdapterRefusal(msgspec.Struct, frozen=True):
    """An AdapterRefused."""

    code: str
    message: str
    field: str | None


class ModelStates(msgspec.Struct, frozen=True, tag="told"):
    """To a worker: the states of all models."""

    states: dict[str, ModelState]


class CommandReply(msgspec.Struct, frozen=True, tag="answered"):
    """To a worker: what it asked for is done, or could not be. `adapter`: the one that was loaded
    or forgotten."""

    number: int
    done: bool
    adapter: LoadedAdapter | None = None
    refusal: AdapterRefusal | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """To a worker: drain; said again: stop at once."""


FromWorker = (
    WorkerReady
    | WorkerFailed
    | ModelCommand
    | LoadAdapterCommand
    | UnloadAdapterCommand
    | SyncCommand
)
ToWorker = ModelStates | CommandReply | Stop

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

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        return await self._fleet.load_adapter(model, order)

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        return await self._fleet.unload_adapter(model, alias, expected)

    async def sync(self) -> None:
        """What changes is applied at once in this process."""


class PipeControl:
    """Of a worker. `write` sends a message to the parent."""

    def __init__(self, write: Callable[[FromWorker], None]) -> None:
        self._write = write
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[CommandReply]] = {}

    async def load(self, model: str) -> None:
        if not (await self._ask(lambda number: ModelCommand(number, "load", model))).done:
            raise load_failed(model)

    async def unload(self, model: str) -> None:
        await self._ask(lambda number: ModelCommand(number, "unload", model))

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        return _adapter_of(await self._ask(lambda number: LoadAdapterCommand(number, model, order)))

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        return _adapter_of(
            await self._ask(lambda number: UnloadAdapterCommand(number, model, alias, expected))
        )

    async def sync(self) -> None:
        await self._ask(SyncCommand)

    def answered(self, answer: CommandReply) -> None:
        """Take in what the parent answered."""
        waiter = self._waiting.get(answer.number)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer)

    async def _ask(self, message: Callable[[int], FromWorker]) -> CommandReply:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._write(message(number))
        try:
            return await self._waiting[number]
        finally:
            del self._waiting[number]


def _adapter_of(answer: CommandReply) -> LoadedAdapter:
    refusal = answer.refusal
    if refusal is not None:
        raise AdapterRefused(refusal.code, refusal.message, field=refusal.field)
    if answer.adapter is None:
        raise ServiceError("internal error")
    return answer.adapter


async def execute_command(
    fleet: EngineFleet, ask: ModelCommand | LoadAdapterCommand | UnloadAdapterCommand | SyncCommand
) -> CommandReply:
    """In the parent: do what a worker asks for. There is an answer whatever happens: the worker
    waits for it."""
    try:
        match ask:
            case ModelCommand(number, "load", model):
                await fleet.load(model)
            case ModelCommand(number, "unload", model):
                await fleet.unload(model)
            case LoadAdapterCommand(number, model, order):
                return CommandReply(number, True, await fleet.load_adapter(model, order))
            case UnloadAdapterCommand(number, model, alias, expected):
                removed = await fleet.unload_adapter(model, alias, expected)
                return CommandReply(number, True, removed)
    except ModelError as error:
        log.error("model %s cannot be loaded: %s", model, error)
        return CommandReply(ask.number, done=False)
    except AdapterRefused as error:
        refusal = AdapterRefusal(error.code, error.message, error.field)
        return CommandReply(ask.number, done=False, refusal=refusal)
    except Exception:
        log.exception("what a worker asked for failed: %s", type(ask).__name__)
        return CommandReply(ask.number, done=False)
    return CommandReply(ask.number, done=True)
