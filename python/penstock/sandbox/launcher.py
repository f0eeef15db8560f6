"""Starts containers: the one caller of `penstock-sandbox`.

The server never opens a path that a program controls: files are read and written by the
container's init, inside the container.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

from penstock.config.settings import SandboxSettings
from penstock.sandbox.connection import Connection
from penstock.sandbox.errors import (
    MissingLayer,
    SandboxDied,
    SandboxFileError,
    SandboxStartError,
)
from penstock.sandbox.files import FileListing, ListedFile, check_path, listed_files
from penstock.sandbox.layers import (
    BINARY,
    ReadyContainer,
    network_of,
    probe,
    require_layers,
)
from penstock.sandbox.process import ExitStatus, SandboxProcess, ServerEnds
from penstock.sandbox.types import Layers
from penstock.sandbox.wire import MAX_PAYLOAD, Fields, Frame, Kind, Payload

__all__ = [
    "FileListing", "ListedFile", "MissingLayer", "Sandbox", "SandboxDied", "SandboxFileError",
    "SandboxSpec", "SandboxStartError", "Usage", "network_of", "probe", "require_layers",
]  # fmt: skip

SKILLS = "skills/"
SKIPPED_FOLDERS = (
    "skills", "__pycache__", "node_modules", "target", "tmp", "temp", "cache", "venv", "env",
)  # fmt: skip
SKIPPED_SUFFIXES = ("pyc", "pyo", "o", "so", "dylib", "dll", "rlib", "rmeta", "d", "class")
MAX_LISTED_FILES = 10_000
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0

_MODES = {"auto": 0, "on": 1, "off": 2}
_NETWORKS = {"none": 0, "loopback": 1, "full": 2}
_FIRST_OUTER_ID = 0x5000_0000
_OUTER_IDS_PER_PROCESS = 1024
_outer_ids: set[int] = set()


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container to start.

    - `settings`: limits and network.
    - `read_only`: folders and files of the host that programs may read and execute, beside the
      system's own: absolute paths without "." and "..".
    - `host_workdir`: folder of the host for the working directory; None: in memory.
    """

    settings: SandboxSettings = SandboxSettings()
    read_only: tuple[str, ...] = ()
    host_workdir: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """Use of a container: processes of its programs, and bytes of its file system."""

    processes: int
    used_bytes: int
    size_bytes: int


def _take_outer_id() -> int:
    """Return a user id that no other container of this machine's servers has."""
    first = _FIRST_OUTER_ID + os.getpid() % 65536 * _OUTER_IDS_PER_PROCESS
    for number in range(first, first + _OUTER_IDS_PER_PROCESS):
        if number not in _outer_ids:
            _outer_ids.add(number)
            return number
    raise SandboxStartError(f"{_OUTER_IDS_PER_PROCESS} containers of this process are running")


class Sandbox:
    """A running container.

    - `layers`: the layers that hold.
    - `working_directory`, `temporary_directory`: absolute paths, as programs see them.
    - `closed`: done when the container has ended and nothing of it is left.
    """

    layers: Layers
    working_directory: str
    temporary_directory: str

    def __init__(self, launcher: subprocess.Popen[bytes], control: socket.socket, uid: int) -> None:
        loop = asyncio.get_running_loop()
        self._launcher = launcher
        self._outer_id = uid
        self._processes: dict[int, SandboxProcess] = {}
        self._connection = Connection(control, self._program_exited)
        self._connection.died.add_done_callback(self._end_processes)
        self.closed: asyncio.Future[None] = loop.create_future()
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def launch(cls, spec: SandboxSpec) -> Sandbox:
        """Start a container. It ends when the calling thread ends.

        Raises MissingLayer if mode "on" asks for a layer that does not hold, SandboxStartError for
        any other failure.
        """
        outer_id = _take_outer_id()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                launcher = subprocess.Popen(
                    [str(BINARY), "--control", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                )
        except OSError as error:
            _outer_ids.discard(outer_id)
            ours.close()
            raise SandboxStartError(f"cannot start {BINARY}: {error}") from error
        sandbox = cls(launcher, ours, outer_id)
        try:
            await asyncio.wait_for(sandbox._start(spec), START_TIMEOUT_S)
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, (SandboxDied, asyncio.TimeoutError)):
                raise SandboxStartError("the sandbox launcher ended or did not answer") from error
            raise
        return sandbox

    async def _start(self, spec: SandboxSpec) -> None:
        settings = spec.settings
        payload = (
            Payload()
            .u32(_MODES[settings.mode])
            .u32(_NETWORKS[network_of(settings)])
            .u64(settings.max_memory_mb << 20)
            .u32(settings.max_cpu_secs)
            .u32(settings.max_procs)
            .u32(self._outer_id)
            .text(spec.host_workdir or "")
            .text(f"penstock-{os.getpid()}-{self._outer_id - _FIRST_OUTER_ID}")
            .texts(spec.read_only)
            .texts(SKIPPED_FOLDERS)
            .texts(SKIPPED_SUFFIXES)
        )
        with self._connection.request(0):
            await self._connection.send(payload.frame(Kind.SPEC, 0))
            frame = await self._connection.reply(0, Kind.READY, Kind.FAILED)
        if frame.kind is Kind.FAILED:
            layer, reason = self._texts(frame)
            if settings.mode == "on" and layer not in ("spec", "folders"):
                raise MissingLayer(layer, reason)
            raise SandboxStartError(f"the sandbox cannot start: {layer}: {reason}")
        ready = msgspec.json.decode(frame.payload, type=ReadyContainer)
        self.layers = ready.layers()
        self.working_directory = ready.working_directory
        self.temporary_directory = ready.temporary_directory

    async def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        channel: bool = False,
        cwd: str | None = None,
    ) -> SandboxProcess:
        """Start a program in a process group of its own, with stdin from /dev/null.

        `argv[0]` is an absolute path; `env` is the whole environment; with `channel`, descriptor 3
        of the program is a stream socket to the server. Raises OSError if the program cannot
        start, ValueError for arguments that are too long or contain null bytes, SandboxDied.
        """
        if any("\0" in text for text in (*argv, *env, *env.values(), cwd or "")):
            raise ValueError("arguments and environment must not contain null bytes")
        payload = (
            Payload()
            .u32(int(channel))
            .text(cwd or self.working_directory)
            .texts(argv)
            .texts(f"{name}={value}" for name, value in env.items())
        )
        with self._connection.request() as number:
            packet = payload.frame(Kind.SPAWN, number)
            ends = ServerEnds()
            process = self._processes[number] = SandboxProcess(number, ends, self._signal_program)
            try:
                await self._connection.send(packet, await ends.open(channel=channel))
                ends.close_program_ends()
                frame = await self._connection.reply(number, Kind.SPAWNED, Kind.FILE_ERROR)
                if frame.kind is Kind.FILE_ERROR:
                    raise OSError(f"cannot start {argv[0]}: {self._texts(frame)[1]}")
                with self._connection.reading():
                    process.pid = Fields(frame.payload).u32()
            except BaseException:
                ends.close()
                self._processes.pop(number, None)
                self._connection.notify(Kind.SIGNAL, Payload().u32(number).u32(9))
                raise
        return process

    async def _signal_program(self, handle: int, number: int) -> None:
        """Send a signal to the program and its descendants. Raises SandboxDied."""
        await self._connection.ask(Kind.SIGNAL, Payload().u32(handle).u32(number), Kind.DONE)

    async def kill_others(self, keep: Sequence[SandboxProcess]) -> None:
        """Kill all processes but these programs and their descendants. Raises SandboxDied."""
        payload = Payload().u32(len(keep))
        for process in keep:
            payload.u32(process.handle)
        await self._connection.ask(Kind.KILL_OTHERS, payload, Kind.DONE)

    async def kill_all(self) -> None:
        """Kill all processes except the init. Raises SandboxDied."""
        await self.kill_others(())

    async def write_file(self, path: str, data: bytes, *, read_only: bool = False) -> None:
        """Write a file of the working directory, through no link, in place of an earlier one.

        Makes the folders above it. `read_only`: for paths below `skills/`, which programs cannot
        change. Raises SandboxFileError with code `unwritable`, ValueError for a path that is not a
        normal relative one, SandboxDied.
        """
        check_path(path)
        if read_only != path.startswith(SKILLS):
            raise ValueError(f"{path!r}: read-only files are those below {SKILLS}")
        inner = path[len(SKILLS) :] if read_only else path
        begin = Payload().u32(int(read_only)).u32(0o444 if read_only else 0o644).text(inner)
        connection = self._connection
        with connection.request() as number:
            try:
                await connection.send(begin.frame(Kind.WRITE_BEGIN, number))
                header = Payload().frame(Kind.WRITE_DATA, number)
                for at in range(0, len(data), MAX_PAYLOAD):
                    await connection.send(header + data[at : at + MAX_PAYLOAD])
                await connection.send(Payload().frame(Kind.WRITE_END, number))
            except asyncio.CancelledError:
                connection.notify(Kind.WRITE_ABORT, Payload(), number)
                raise
            frame = await connection.reply(number, Kind.DONE, Kind.FILE_ERROR)
        if frame.kind is Kind.FILE_ERROR:
            raise SandboxFileError(*self._texts(frame))

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a regular file of the working directory.

        Raises SandboxFileError, SandboxDied.
        """
        if "\0" in path:
            raise SandboxFileError("not_produced", "The file does not exist.")
        kinds = (Kind.FILE_SIZE, Kind.FILE_DATA, Kind.DONE, Kind.FILE_ERROR)
        data = bytearray()
        with self._connection.request() as number:
            request = Payload().u64(max_bytes).text(path).frame(Kind.READ, number)
            await self._connection.send(request)
            while True:
                frame = await self._connection.reply(number, *kinds)
                if frame.kind is Kind.DONE:
                    return bytes(data)
                if frame.kind is Kind.FILE_ERROR:
                    raise SandboxFileError(*self._texts(frame))
                if frame.kind is Kind.FILE_DATA:
                    data += frame.payload
                if len(data) > max_bytes:
                    raise self._connection.broken("more data than the file's limit")

    async def list_files(self) -> FileListing:
        """Return the regular files of the working directory, without hidden and built ones.

        Raises SandboxDied.
        """
        files: list[ListedFile] = []
        with self._connection.request() as number:
            await self._connection.send(Payload().u32(MAX_LISTED_FILES).frame(Kind.LIST, number))
            while True:
                frame = await self._connection.reply(number, Kind.ENTRIES, Kind.LISTED)
                with self._connection.reading():
                    if frame.kind is Kind.LISTED:
                        truncated = Fields(frame.payload).u32() != 0
                        return FileListing(tuple(files), truncated)
                    files += listed_files(frame)
                if len(files) > MAX_LISTED_FILES:
                    raise self._connection.broken("more files than the limit")

    async def stats(self) -> Usage:
        """Return the use of the container. Raises SandboxDied."""
        frame = await self._connection.ask(Kind.STATS, Payload(), Kind.USAGE)
        with self._connection.reading():
            fields = Fields(frame.payload)
            return Usage(fields.u32(), fields.u64(), fields.u64())

    @property
    def launcher_pid(self) -> int:
        """The PID of the container's launcher; its child is the container's init."""
        return self._launcher.pid

    @property
    def control_descriptor(self) -> int:
        """The descriptor of the socket to the init."""
        return self._connection.fileno()

    async def close(self) -> None:
        """End the container with all its processes; return when nothing of it is left."""
        self._connection.close()
        await asyncio.shield(self.closed)

    def _texts(self, frame: Frame) -> tuple[str, str]:
        with self._connection.reading():
            fields = Fields(frame.payload)
            return fields.text(), fields.text()

    def _program_exited(self, number: int, payload: bytes) -> None:
        process = self._processes.pop(number, None)
        if process is not None and not process.exit.done():
            process.exit.set_result(ExitStatus.from_wait(Fields(payload).u32()))

    def _end_processes(self, _: object) -> None:
        for process in self._processes.values():
            if not process.exit.done():
                process.exit.set_result(ExitStatus(None, 9))
        self._processes.clear()
        self._ending = asyncio.get_running_loop().create_task(self._wait_for_launcher())

    async def _wait_for_launcher(self) -> None:
        try:
            await asyncio.to_thread(self._launcher.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            await asyncio.to_thread(self._launcher.wait)
        finally:
            _outer_ids.discard(self._outer_id)
            self.closed.set_result(None)
