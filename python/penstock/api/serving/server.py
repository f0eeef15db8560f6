"""Runs a server, from the start of its engine and API processes to their shutdown.

The first engine is spawned before the slow imports, so that it loads during them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import uvloop

from penstock.api.serving.ready import Announce, ready_server
from penstock.api.serving.sockets import bind_socket
from penstock.api.serving.tasks import ApiTask, ModelTask
from penstock.base.errors import ModelError
from penstock.config import ModelSettings, ServingSettings
from penstock.engine.processes.fleet import EngineFleet

if TYPE_CHECKING:
    from penstock.models.loader.sampling_defaults import SamplingDefaults

Print = Callable[[str], None]


def run_server(settings: ServingSettings, say: Print, announce: Announce) -> None:
    """Serve until SIGTERM or SIGINT. `settings`: every model must have an id.

    `say`: prints the memory reports and the sampling defaults.
    `announce`: called when the server is ready.

    Raises ModelError if a model cannot be served, SettingsError if the store cannot be opened,
    OSError if the address cannot be bound, KeyboardInterrupt if SIGINT arrives before the server is
    ready.
    """
    bound = bind_socket(settings.server.host, settings.server.port)
    with bound:
        uvloop.run(_serve(settings, bound, say, announce))


async def _serve(
    settings: ServingSettings, bound: socket.socket, say: Print, announce: Announce
) -> None:
    fleet = EngineFleet({model.id: model.engine for model in settings.models})
    loaded = [model.id for model in settings.models if not model.on_demand]
    with _cancelled_by_signals():
        try:
            await fleet.start(loaded)
            serve = _serve_here if settings.server.workers == 1 else _serve_by_workers
            await serve(settings, fleet, bound, say, announce)
        finally:
            await fleet.stop()


async def _serve_here(
    settings: ServingSettings,
    fleet: EngineFleet,
    bound: socket.socket,
    say: Print,
    announce: Announce,
) -> None:
    gc.disable()  # loading leaves no garbage; `ApiProcess.serve` enables the collector again
    # Imported here, while the engine loads in its own process; the import takes 0.3 s.
    from penstock.api.serving.model_control import FleetControl
    from penstock.api.serving.process import ApiProcess

    api = ApiProcess(_api_task(settings, fleet), FleetControl(fleet))
    try:
        fleet.watch(api.models.apply)
        await api.check_store()  # the engine loads during this check
        await _load_all(settings, fleet, say)
        await api.start()
        _say_sampling(settings.models, api.models.sampling, say)
        ready = ready_server(settings, fleet.info, bound)
        await api.serve(bound, lambda _: announce(ready))
    finally:
        gc.enable()
        await api.close()


async def _serve_by_workers(
    settings: ServingSettings,
    fleet: EngineFleet,
    bound: socket.socket,
    say: Print,
    announce: Announce,
) -> None:
    from penstock.api.serving.workers import WorkerGroup

    group = WorkerGroup(_api_task(settings, fleet), fleet, bound.fileno())
    try:
        await group.start()
        await _load_all(settings, fleet, say)
        await group.wait_ready()
        _say_sampling(settings.models, group.sampling, say)
        announce(ready_server(settings, fleet.info, bound))
        await group.wait_stopped()
    finally:
        await group.close()


async def _load_all(settings: ServingSettings, fleet: EngineFleet, say: Print) -> None:
    """Load all models that are not loaded on demand, and print their memory reports. Raises
    ModelError."""
    several = len(settings.models) > 1
    for model in settings.models:
        if model.on_demand:
            continue
        try:
            await fleet.load(model.id)
        except ModelError as error:
            raise ModelError(f"model {model.id}: {error}" if several else str(error)) from None
        say(f"{model.id}: {fleet.report(model.id)}" if several else fleet.report(model.id))


def _say_sampling(
    models: Sequence[ModelSettings], sampling: Mapping[str, SamplingDefaults], say: Print
) -> None:
    """Print the sampling defaults of each loaded model."""
    for name, defaults in sampling.items():
        line = f"sampling unless a request says otherwise: {defaults}"
        say(f"{name}: {line}" if len(models) > 1 else line)


def _api_task(settings: ServingSettings, fleet: EngineFleet) -> ApiTask:
    models = tuple(ModelTask(model, fleet.socket_path(model.id)) for model in settings.models)
    return ApiTask(models, settings.default_model_id, settings.server)


@contextlib.contextmanager
def _cancelled_by_signals() -> Iterator[None]:
    """Context manager that cancels the current task on SIGTERM and SIGINT while the server starts.
    The HTTP server then installs its own handlers. After SIGINT, KeyboardInterrupt is raised."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    received: list[signal.Signals] = []
    cancel = task.cancel

    def stop(number: signal.Signals) -> None:
        received.append(number)
        cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if signal.SIGINT in received:
            raise KeyboardInterrupt from None
