"""CPU cost of the API application itself: no sockets, with the engine's chunks fed directly.

    python -m bench.lab.api_overhead [--rounds 30] [--connections 128]
    valgrind --tool=callgrind --instr-atstart=no python -m bench.lab.api_overhead --count

Measures the CPU time of a 32-token answer, of a streamed token in a frame of its own, and of one of
four tokens that came in one read: minimum and median of the rounds. With `--count` it counts
instructions, which do not depend on other load: divide the totals of `callgrind.out.PID.1` to `.3`
by the number that is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from bench.api import bodies
from penstock.adapters.registry import LoadedAdapter
from penstock.agent import SharedState, load_runners
from penstock.api.app import create_app
from penstock.api.http.uvicorn_protocol import bounded_protocol
from penstock.api.models.model_catalog import ModelCatalog
from penstock.api.models.served_model import LoadedModel, ServedModel
from penstock.api.observability.access_log import configure_access_log
from penstock.api.observability.metrics import Metrics
from penstock.api.observability.token_latency import RequestObserver
from penstock.api.services import Services
from penstock.api.serving.process import GC_THRESHOLDS
from penstock.base.logs import configure_logging
from penstock.config import ServerSettings, StoreSettings, read_environment
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.ipc.client import EngineClient
from penstock.engine.ipc.messages import (
    Admitted,
    FrameReader,
    Hello,
    Submit,
    TokenOutputs,
    frame,
    to_engine_decoder,
)
from penstock.engine.processes.fleet import ModelState
from penstock.engine.types import EngineInfo, TokenDelta, TokenOutput
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.sources import resolve_model
from penstock.store import Store

ANSWER_TOKENS, STEPS, JOINED = 32, 96, 4
STREAM_TOKENS = 8000
FIRST_TOKEN = 300  # this token and the ones after it are ordinary words in every vocabulary
TURNS = 6
"""Iterations of the event loop after which no work is left."""


class Wire(asyncio.Transport):
    """A connection whose client reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.last = b""

    def write(self, data: Any) -> None:
        self.last = data

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class EngineWire(Wire):
    """The engine's end of the socket: collects the ids of the submitted requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._frames = FrameReader()

    def write(self, data: Any) -> None:
        for body in self._frames.feed(bytes(data)):
            message = to_engine_decoder.decode(body)
            if isinstance(message, Submit):
                self.asked.append(message.request.id)


class Control:
    """A `ModelControl` that loads and unloads nothing."""

    async def load(self, model: str) -> None: ...

    async def unload(self, model: str) -> None: ...

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        raise NotImplementedError

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        raise NotImplementedError

    async def sync(self) -> None: ...


class Bench:
    """The application, its connections, and the engine's end of the socket."""

    def __init__(self, client: EngineClient, protocols: list[Any], wires: list[Wire]) -> None:
        self._client = client
        self._engine = EngineWire()
        client._open(self._engine)
        self._protocols = protocols
        self._wires = wires

    async def ask(self, requests: Sequence[bytes]) -> list[str]:
        """Send one request on each connection; return their ids at the engine."""
        for protocol, request in zip(self._protocols, requests, strict=True):
            protocol.data_received(request)
        while len(self._engine.asked) < len(requests):
            await asyncio.sleep(0)
        asked, self._engine.asked = self._engine.asked, []
        self._client._receive(b"".join(frame(Admitted(id)) for id in asked))
        return asked

    async def deliver(self, frames: list[bytes]) -> None:
        """Deliver the frames of one read of the engine's socket."""
        self._client._receive(b"".join(frames))
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def idle(self) -> None:
        while self._client.in_flight:
            await asyncio.sleep(0)


def chunks(ids: Sequence[str], step: int, tokens: int = 1, **more: Any) -> bytes:
    """Return the frame with the outputs of one step."""
    made = tuple(TokenDelta(FIRST_TOKEN + step + k) for k in range(tokens))
    now = time.monotonic()
    return frame(TokenOutputs(tuple(TokenOutput(id, made, now, **more) for id in ids)))


async def answers(bench: Bench, requests: Sequence[bytes]) -> float:
    """Return the CPU seconds of one answer per connection."""
    began = time.thread_time()
    ids = await bench.ask(requests)
    asked = time.thread_time() - began
    groups = [ids[at : at + 8] for at in range(0, len(ids), 8)]
    whole = {"cached_tokens": 0, "finish": "length", "first_step_time_s": time.monotonic()}
    frames = [chunks(group, 0, ANSWER_TOKENS, **whole) for group in groups]
    began = time.thread_time()
    for group_frame in frames:
        await bench.deliver([group_frame])
    await bench.idle()
    return asked + time.thread_time() - began


async def streams(bench: Bench, ids: Sequence[str], joined: int) -> float:
    """Return the CPU seconds of STEPS steps of open streams, `joined` of them per socket read."""
    frames = [chunks(ids, step) for step in range(STEPS)]
    began = time.thread_time()
    for at in range(0, STEPS, joined):
        await bench.deliver(frames[at : at + joined])
    return time.thread_time() - began


async def build(model: str, connections: int) -> Bench:
    """Build the application as an API process does, without connections."""
    place = tempfile.mkdtemp(prefix="bench-")
    store = StoreSettings(f"sqlite:///{place}/store.db", f"{place}/blobs", f"{place}/skills")
    settings = ServerSettings("127.0.0.1", store=store)
    opened = await Store.open(store)
    metrics = Metrics(None)
    client = EngineClient(f"{place}/nobody.sock", RequestObserver(metrics))
    client._task.cancel()
    environment = read_environment()
    hub = HubAccess(token=None, cache=environment.hf_home / "hub")
    files = resolve_model(model, environment.home, hub)
    runners = load_runners(files, client, state=SharedState(sessions=opened.sessions))

    async def loaded() -> LoadedModel:
        return LoadedModel(runners, client, lambda: True, client.close)

    served = ServedModel("m", loaded, Control())
    served.apply(ModelState("loaded"))
    info = EngineInfo("m", STREAM_TOKENS + 1000, 49152, 1024, 0, 16, 0, "fp")
    client._open(EngineWire())
    client._receive(frame(Hello(info)))
    await served.started()
    registry = ModelCatalog([served], aliases={}, default=None)
    services = Services(registry, Control(), opened, settings, metrics)
    protocol = bounded_protocol(2 * connections)
    config = uvicorn.Config(
        create_app(services),
        http=protocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    config.load()
    state = ServerState()
    protocols = [protocol(config, state, {}) for _ in range(connections)]
    wires = [Wire() for _ in protocols]
    for connected, wire in zip(protocols, wires, strict=True):
        connected.connection_made(wire)
    return Bench(client, protocols, wires)


def callgrind(*command: str) -> None:
    subprocess.run(["callgrind_control", *command, str(os.getpid())], capture_output=True)


async def run(model: str, connections: int, rounds: int, count: bool) -> None:
    bench = await build(model, connections)
    asking = bodies(stream=False, max_tokens=ANSWER_TOKENS)

    async def answer() -> float:
        return await answers(bench, list(itertools.islice(asking, connections)))

    async def measure(name: str, each: int, work: Callable[[], Any]) -> None:
        if count:
            callgrind("-z")
            await work()
            callgrind("-d")
            print(f"{name}: {each}")
            return
        taken = [1e6 * await work() / each for _ in range(rounds)]
        print(f"{name}: min {min(taken):.2f} us, median {statistics.median(taken):.2f} us")

    await answer()
    await answer()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    if count:
        gc.disable()
        callgrind("-i=on")
    await measure("answer", connections, answer)
    asking_streams = bodies(stream=True, max_tokens=STREAM_TOKENS)
    ids = await bench.ask(list(itertools.islice(asking_streams, connections)))
    await bench.deliver([chunks(ids, 0, cached_tokens=0)])
    await measure("token", connections * STEPS, lambda: streams(bench, ids, 1))
    await measure("token of four", connections * STEPS, lambda: streams(bench, ids, JOINED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--connections", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--count", action="store_true", help="count instructions (see above)")
    arguments = parser.parse_args()
    configure_logging()
    configure_access_log("text", enabled=True)
    work = run(arguments.model, arguments.connections, arguments.rounds, arguments.count)
    uvloop.run(work)


if __name__ == "__main__":
    main()
