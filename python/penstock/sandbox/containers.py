"""The containers of an API process, by id.

    containers = Containers(settings)
    container = await containers.container(id)      # see sandbox/container.py
    await containers.layers(), containers.running, await containers.python_facts()
    await containers.close_container(id), await containers.close()

A container that is idle for too long ends, and so does the longest idle one if there are too many.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from pathlib import Path

from penstock.base.errors import Overloaded, Unavailable
from penstock.config.settings import AgentSettings
from penstock.sandbox.container import Container
from penstock.sandbox.launcher import Sandbox, SandboxSpec, SandboxStartError
from penstock.sandbox.layers import probe
from penstock.sandbox.python_facts import PythonFacts, query_python
from penstock.sandbox.types import Layers
from penstock.sandbox.waiting import discard

MAX_REMEMBERED = 4096  # ids of ended containers
MIN_REAP_INTERVAL_S = 0.05
MAX_REAP_INTERVAL_S = 60.0


class Containers:
    """All containers of this process. Use it in one event loop."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._containers: dict[str, Container] = {}
        self._ids: dict[Container, str] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._slots: set[Container] = set()
        self._facts: PythonFacts | None = None
        self._querying = asyncio.Lock()
        self._reaper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def running(self) -> int:
        """Number of containers with processes."""
        return sum(container.running for container in self._slots)

    async def container(self, id: str) -> Container:
        """Return the container with this id. Its processes start with its first call."""
        container = self._containers.get(id)
        if container is None:
            container = Container(
                self._launch, self._python, self._settings.shell_path, lost=id in self._ended
            )
            self._containers[id] = container
            self._ids[container] = id
            self._ended.pop(id, None)
        container.last_used = time.monotonic()
        return container

    async def python_facts(self) -> PythonFacts:
        """Return version and packages of the Python tool's Python, asked once.

        Raises Unavailable if it does not work.
        """
        async with self._querying:
            if self._facts is None:
                self._facts = await query_python(self._settings.code_exec_python)
        return self._facts

    async def layers(self) -> Layers:
        """Return the layers of the sandbox that hold on this machine, probed once.

        A machine on which no sandbox can start has the reason in `missing`.
        """
        return await asyncio.to_thread(probe, self._settings.sandbox)

    async def close_container(self, id: str) -> None:
        """End a container and forget it. A call that runs in it ends with an error."""
        container = self._containers.pop(id, None)
        if container is not None:
            self._ids.pop(container, None)
            self._slots.discard(container)
            await container.close()

    async def close(self) -> None:
        """End all containers. Later calls raise Unavailable."""
        self._closed = True
        if self._reaper is not None:
            await discard(self._reaper)
        closing = [self.close_container(id) for id in list(self._containers)]
        await asyncio.gather(*closing)

    async def _python(self) -> PythonFacts | None:
        return await self.python_facts() if self._settings.enable_code_execution else None

    async def _launch(self, container: Container) -> Sandbox:
        """Start the sandbox of a container, in place of the longest idle one if necessary."""
        if self._closed or container not in self._ids:
            raise Unavailable("The container is closed.")
        facts = await self._python()
        await self._make_room(container)
        self._slots.add(container)
        try:
            return await Sandbox.launch(
                SandboxSpec(
                    settings=self._settings.sandbox,
                    read_only=() if facts is None else facts.folders(),
                    host_workdir=self._host_folder(self._ids[container]),
                )
            )
        except BaseException as error:
            self._slots.discard(container)
            if isinstance(error, (SandboxStartError, OSError)):
                raise Unavailable(f"The sandbox cannot start: {error}") from error
            raise
        finally:
            if self._reaper is None and not self._closed:
                self._reaper = asyncio.create_task(self._reap())

    async def _make_room(self, container: Container) -> None:
        self._slots.discard(container)
        self._slots = {other for other in self._slots if other.running or other.busy}
        while len(self._slots) >= self._settings.max_containers:
            idle = [other for other in self._slots if not other.busy]
            if not idle:
                raise Overloaded(
                    f"All {self._settings.max_containers} containers are busy. Try again later.",
                    retry_after_s=5,
                )
            await self._end_idle(min(idle, key=lambda other: other.last_used))

    async def _end_idle(self, container: Container) -> None:
        """End a container that no call uses; remember its id, so that a later call says so."""
        self._slots.discard(container)
        id = self._ids.pop(container, None)
        if id is not None:
            del self._containers[id]
            self._ended[id] = None
            if len(self._ended) > MAX_REMEMBERED:
                self._ended.popitem(last=False)
        await container.close()

    async def _reap(self) -> None:
        idle_s = self._settings.session_idle_s
        interval_s = min(MAX_REAP_INTERVAL_S, max(MIN_REAP_INTERVAL_S, idle_s / 4))
        while True:
            await asyncio.sleep(interval_s)
            oldest = time.monotonic() - idle_s
            for container in list(self._ids):
                if container.last_used <= oldest and not container.busy:
                    await self._end_idle(container)

    def _host_folder(self, id: str) -> str | None:
        """Make and return the folder of the host for the files of a container, None: in memory."""
        root = self._settings.code_exec_workdir or self._settings.shell_workdir
        if root is None:
            return None
        name = re.sub(r"[^A-Za-z0-9_-]", "_", id)
        if name != id or len(name) > 100:
            name = f"{name[:60]}-{hashlib.sha256(id.encode()).hexdigest()[:16]}"
        folder = Path(root).resolve() / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(folder)
