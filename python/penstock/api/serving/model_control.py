"""Loads and unloads models and adapters. The process that owns the engine fleet does it directly;
one of several API workers sends commands to its parent process.

Commands and replies use the worker's standard input and output, one line of JSON per message. These
pipes need no name, no access control and no cleanup, and they break when either process ends.
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
    """Sent by a worker that has started to serve.

    `sampling`: model id -> sampling defaults, for each loaded model.
    """

    sampling: dict[str, SamplingDefaults] = {}


class WorkerFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Sent by a worker that cannot serve and exits. `text`: the error message."""

    text: str


class ModelCommand(msgspec.Struct, frozen=True, tag="model_command"):
    """Sent by a worker: load or unload a model. The parent's reply has the same `number`."""

    number: int
    action: Action
    model: str


class LoadAdapterCommand(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Sent by a worker: load an adapter of `model`. The parent's reply has the same `number`."""

    number: int
    model: str
    order: AdapterLoadRequest


class UnloadAdapterCommand(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Sent by a worker: unload an adapter of `model`. The parent's reply has the same `number`.

    `expected`: the revision that `alias` must have; None: any.
    """

    number: int
    model: str
    alias: str
    expected: str | None


class SyncCommand(msgspec.Struct, frozen=True, tag="sync"):
    """Sent by a worker: reply once all engine state changes so far have been sent."""

    number: int


class AdapterRefusal(msgspec.Struct, frozen=True):
    """The fields of an AdapterRefused error."""

    code: str
    message: str
    field: str | None


class ModelStates(msgspec.Struct, frozen=True, tag="model_states"):
    """Sent to a worker: the engine states of all models.

    `states`: model id -> state.
    """

    states: dict[str, ModelState]


class CommandReply(msgspec.Struct, frozen=True, tag="command_reply"):
    """Sent to a worker: the result of the command with the same `number`.

    `done`: True if the command succeeded.
    `adapter`: the adapter that was loaded or unloaded.
    `refusal`: the reason why the command on an adapter failed.
    """

    number: int
    done: bool
    adapter: LoadedAdapter | None = None
    refusal: AdapterRefusal | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Sent to a worker: drain. The second Stop stops the worker at once."""


Command = ModelCommand | LoadAdapterCommand | UnloadAdapterCommand | SyncCommand
FromWorker = WorkerReady | WorkerFailed | Command
ToWorker = ModelStates | CommandReply | Stop

from_worker_decoder: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
to_worker_decoder: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)


def encode_message(message: msgspec.Struct) -> bytes:
    """Encode a message as one line for the pipe."""
    return msgspec.json.encode(message) + b"\n"


def load_failed(model: str) -> Unavailable:
    """Return the error for a model whose engine did not start. The reason is in the parent's
    log."""
    return Unavailable(f"the model '{model}' could not be loaded", code="model_load_failed")


class FleetControl:
    """ModelControl of an API process that also owns the engine fleet."""

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
        """Return at once: state changes are applied in this process without delay."""


class PipeControl:
    """ModelControl of an API worker: sends commands to the parent. `write` sends one message."""

    def __init__(self, write: Callable[[FromWorker], None]) -> None:
        self._write = write
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[CommandReply]] = {}

    async def load(self, model: str) -> None:
        if not (await self._call(lambda number: ModelCommand(number, "load", model))).done:
            raise load_failed(model)

    async def unload(self, model: str) -> None:
        await self._call(lambda number: ModelCommand(number, "unload", model))

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        return _adapter_or_raise(
            await self._call(lambda number: LoadAdapterCommand(number, model, order))
        )

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        return _adapter_or_raise(
            await self._call(lambda number: UnloadAdapterCommand(number, model, alias, expected))
        )

    async def sync(self) -> None:
        await self._call(SyncCommand)

    def resolve_reply(self, reply: CommandReply) -> None:
        """Deliver a reply of the parent to the call that waits for it."""
        waiter = self._waiting.get(reply.number)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    async def _call(self, command: Callable[[int], FromWorker]) -> CommandReply:
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._write(command(number))
        try:
            return await self._waiting[number]
        finally:
            del self._waiting[number]


def _adapter_or_raise(reply: CommandReply) -> LoadedAdapter:
    refusal = reply.refusal
    if refusal is not None:
        raise AdapterRefused(refusal.code, refusal.message, field=refusal.field)
    if reply.adapter is None:
        raise ServiceError("internal error")
    return reply.adapter


async def execute_command(fleet: EngineFleet, command: Command) -> CommandReply:
    """Execute a worker's command in the parent process. Returns a reply even for an error, because
    the worker waits for one."""
    try:
        match command:
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
        return CommandReply(command.number, done=False)
    except AdapterRefused as error:
        refusal = AdapterRefusal(error.code, error.message, error.field)
        return CommandReply(command.number, done=False, refusal=refusal)
    except Exception:
        log.exception("the command of an API worker failed: %s", type(command).__name__)
        return CommandReply(command.number, done=False)
    return CommandReply(command.number, done=True)
