"""Starts containers and speaks to their inits.

Owns the protocol with `penstock-sandbox`. The server's side never opens a path that a program
controls: files are read and written by the init, inside the container.
"""

from __future__ import annotations

import array
import asyncio
import functools
import itertools
import os
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from penstock.config.settings import SandboxSettings
from penstock.sandbox.process import ExitStatus, SandboxProcess, ServerEnds
from penstock.sandbox.types import Layers
from penstock.sandbox.wire import MAX_FRAME, MAX_PAYLOAD, Fields, Frame, FrameError, Kind, Payload

BINARY = Path(__file__).resolve().parent.parent / "bin" / "penstock-sandbox"
SKILLS = "skills/"
SKIPPED_FOLDERS = (
    "skills", "__pycache__", "node_modules", "target", "tmp", "temp", "cache", "venv", "env",
)  # fmt: skip
SKIPPED_SUFFIXES = ("pyc", "pyo", "o", "so", "dylib", "dll", "rlib", "rmeta", "d", "class")
MAX_LISTED_FILES = 10_000
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
# Layers that mode "on" does without: they depend on the service manager and on new kernels.
OPTIONAL_LAYERS = ("cgroup", "landlock_scopes")

_MODES = {"auto": 0, "on": 1, "off": 2}
_NETWORKS = {"none": 0, "loopback": 1, "full": 2}
_FIRST_OUTER_ID = 0x5000_0000
_OUTER_IDS_PER_PROCESS = 1024


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A container to start.

    - `settings`: limits and network.
    - `read_only`: folders and files of the host that programs may read and execute, beside the
      system's own.
    - `host_workdir`: folder of the host for the working directory; None: in memory.
    """

    settings: SandboxSettings = SandboxSettings()
    read_only: tuple[str, ...] = ()
    host_workdir: str | None = None


class SandboxDied(Exception):
    """The container has ended: its init died, broke the protocol, or was closed."""


class SandboxStartError(Exception):
    """The container could not start."""


class MissingLayer(SandboxStartError):
    """A layer of the sandbox does not hold on this machine, and mode "on" requires it.

    - `layer`: namespaces, landlock, seccomp, limits or network.
    - `reason`: the step that failed, with the system's message.
    """

    def __init__(self, layer: str, reason: str) -> None:
        super().__init__(f"sandbox layer {layer!r} does not hold on this machine: {reason}")
        self.layer = layer
        self.reason = reason


class SandboxFileError(Exception):
    """A file could not be read or written.

    `code`: `not_produced`, `not_a_regular_file`, `too_large`, `unreadable` or `unwritable`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ListedFile(msgspec.Struct, frozen=True):
    """A regular file of the working directory. Two equal values mean an unchanged file."""

    path: str
    size_bytes: int
    mtime_ns: int
    inode: int


class FileListing(msgspec.Struct, frozen=True):
    """The regular files of the working directory. `truncated`: there are more."""

    files: tuple[ListedFile, ...]
    truncated: bool


class Usage(msgspec.Struct, frozen=True):
    """Use of a container: processes, and bytes of its file system."""

    processes: int
    used_bytes: int
    size_bytes: int


class _Ready(Layers, frozen=True, kw_only=True):
    working_directory: str
    temporary_directory: str


_outer_ids: set[int] = set()


def _take_outer_id() -> int:
    """Return a user id that no other container of this machine's servers has."""
    first = _FIRST_OUTER_ID + os.getpid() % 65536 * _OUTER_IDS_PER_PROCESS
    for number in range(first, first + _OUTER_IDS_PER_PROCESS):
        if number not in _outer_ids:
            _outer_ids.add(number)
            return number
    raise SandboxStartError(f"{_OUTER_IDS_PER_PROCESS} containers of this process are running")


def probe(settings: SandboxSettings) -> Layers:
    """Return the layers that hold on this machine for these settings. The result is cached.

    Starts a container without programs and ends it: some milliseconds.
    """
    if settings.mode == "off":
        return Layers()
    return _probe(network_of(settings))


def require_layers(settings: SandboxSettings) -> Layers:
    """Return probe()'s layers. Raises MissingLayer if mode "on" lacks one."""
    layers = probe(settings)
    if settings.mode == "on":
        for layer, reason in layers.missing:
            if layer not in OPTIONAL_LAYERS:
                raise MissingLayer(layer, reason)
    return layers


@functools.cache
def _probe(network: str) -> Layers:
    try:
        result = subprocess.run(
            [str(BINARY), "--probe", network],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            env={},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Layers(missing=(("launcher", str(error)),))
    if result.returncode != 0:
        return Layers(missing=(("launcher", result.stderr.decode("utf-8", "replace").strip()),))
    return _layers_of(msgspec.json.decode(result.stdout, type=_Ready))


def _layers_of(ready: _Ready) -> Layers:
    return Layers(**{name: getattr(ready, name) for name in Layers.__struct_fields__})


def network_of(settings: SandboxSettings) -> Literal["none", "loopback", "full"]:
    """Return the network that the settings ask for."""
    if settings.network is not None:
        return settings.network
    return "full" if settings.profile == "developer" else "loopback"


class Sandbox:
    """A running container.

    - `layers`: the layers that hold.
    - `working_directory`, `temporary_directory`: absolute paths, as programs see them.
    - `closed`: done when the container has ended.
    """

    layers: Layers
    working_directory: str
    temporary_directory: str

    def __init__(self, launcher: subprocess.Popen[bytes], control: socket.socket, uid: int) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._launcher = launcher
        self._control = control
        self._outer_id = uid
        self._numbers = itertools.count(1)
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._replies: dict[int, asyncio.Queue[Frame | None]] = {}
        self._processes: dict[int, SandboxProcess] = {}
        self._end: asyncio.Task[None] | None = None
        self.closed: asyncio.Future[None] = loop.create_future()
        loop.add_reader(control.fileno(), self._receive)

    @classmethod
    async def launch(cls, spec: SandboxSpec) -> Sandbox:
        """Start a container.

        Raises MissingLayer if mode "on" asks for a layer that does not hold, SandboxStartError for
        any other failure.
        """
        if not BINARY.exists():
            raise SandboxStartError(f"{BINARY} does not exist: this build has no sandbox")
        outer_id = _take_outer_id()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            with theirs:
                launcher = subprocess.Popen(
                    [str(BINARY), "--control", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                )
        except BaseException as error:
            _outer_ids.discard(outer_id)
            ours.close()
            if isinstance(error, OSError):
                raise SandboxStartError(f"cannot start {BINARY}: {error}") from error
            raise
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
        self._replies[0] = asyncio.Queue()
        await self._send(payload.frame(Kind.SPEC, 0))
        frame = await self._reply(0)
        del self._replies[0]
        if frame.kind is Kind.FAILED:
            fields = Fields(frame.payload)
            layer, reason = fields.text(), fields.text()
            if settings.mode == "on" and layer != "spec":
                raise MissingLayer(layer, reason)
            raise SandboxStartError(f"the sandbox cannot start: {layer}: {reason}")
        ready = msgspec.json.decode(frame.payload, type=_Ready)
        self.layers = _layers_of(ready)
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
        """Start a program in a session of its own, with stdin from /dev/null.

        `argv[0]` is an absolute path; `env` is the whole environment; with `channel`, descriptor 3
        of the program is a stream socket to the server. Raises OSError if the program cannot
        start, ValueError for arguments that are too long or contain null bytes, SandboxDied.
        """
        if any("\0" in text for text in (*argv, *env, *env.values(), cwd or "")):
            raise ValueError("arguments and environment must not contain null bytes")
        number = next(self._numbers)
        packet = (
            Payload()
            .u32(int(channel))
            .text(cwd or self.working_directory)
            .texts(argv)
            .texts(f"{name}={value}" for name, value in env.items())
            .frame(Kind.SPAWN, number)
        )
        ends = ServerEnds()
        process = SandboxProcess(self, number, ends)
        self._replies[number] = asyncio.Queue()
        self._processes[number] = process
        try:
            await self._send(packet, await ends.open(channel=channel))
            ends.close_program_ends()
            frame = await self._reply(number)
            if frame.kind is Kind.FILE_ERROR:
                raise OSError(f"cannot start {argv[0]}: {self._file_error(frame)}")
            process.pid = Fields(frame.payload).u32()
        except BaseException:
            ends.close()
            self._processes.pop(number, None)
            self._forget_program(number)
            raise
        finally:
            self._replies.pop(number, None)
        return process

    def _forget_program(self, number: int) -> None:
        """Kill a program that nobody waits for."""
        if not self.closed.done():
            payload = Payload().u32(number).u32(9)
            self._outgoing.append((payload.frame(Kind.SIGNAL, next(self._numbers)), []))
            self._flush()

    async def signal_program(self, handle: int, number: int) -> None:
        """Send a signal to the program and its descendants. Raises SandboxDied."""
        await self._ask(Kind.SIGNAL, Payload().u32(handle).u32(number))

    async def kill_others(self, keep: Sequence[SandboxProcess]) -> None:
        """Kill all processes but these programs and their descendants. Raises SandboxDied."""
        payload = Payload().u32(len(keep))
        for process in keep:
            payload.u32(process.handle)
        await self._ask(Kind.KILL_OTHERS, payload)

    async def kill_all(self) -> None:
        """Kill all processes except the init. Raises SandboxDied."""
        await self.kill_others(())

    async def write_file(self, path: str, data: bytes, *, read_only: bool = False) -> None:
        """Write a file of the working directory, through no link, in place of an earlier one.

        Makes the folders above it. `read_only`: for paths below `skills/`, which programs cannot
        change. Raises SandboxFileError with code `unwritable`, ValueError for a path that is not a
        normal relative one, SandboxDied.
        """
        _check_path(path)
        if read_only != path.startswith(SKILLS):
            raise ValueError(f"{path!r}: read-only files are those below {SKILLS}")
        number = next(self._numbers)
        inner = path[len(SKILLS) :] if read_only else path
        begin = Payload().u32(int(read_only)).u32(0o444 if read_only else 0o644).text(inner)
        self._replies[number] = asyncio.Queue()
        try:
            await self._send(begin.frame(Kind.WRITE_BEGIN, number))
            header = Payload().frame(Kind.WRITE_DATA, number)
            for at in range(0, len(data), MAX_PAYLOAD):
                await self._send(header + data[at : at + MAX_PAYLOAD])
            await self._send(Payload().frame(Kind.WRITE_END, number))
            frame = await self._reply(number)
        finally:
            del self._replies[number]
        if frame.kind is Kind.FILE_ERROR:
            raise self._file_error(frame)

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """Return the content of a regular file of the working directory.

        Raises SandboxFileError, SandboxDied.
        """
        if "\0" in path:
            raise SandboxFileError("not_produced", "The file does not exist.")
        number = next(self._numbers)
        self._replies[number] = asyncio.Queue()
        data = bytearray()
        try:
            await self._send(Payload().u64(max_bytes).text(path).frame(Kind.READ, number))
            while (frame := await self._reply(number)).kind is not Kind.DONE:
                if frame.kind is Kind.FILE_ERROR:
                    raise self._file_error(frame)
                if frame.kind is Kind.FILE_DATA:
                    data += frame.payload
                if len(data) > max_bytes:
                    self._break("more data than the file's limit")
        finally:
            del self._replies[number]
        return bytes(data)

    async def list_files(self) -> FileListing:
        """Return the regular files of the working directory, without hidden and built ones.

        Raises SandboxDied.
        """
        number = next(self._numbers)
        self._replies[number] = asyncio.Queue()
        files: list[ListedFile] = []
        try:
            await self._send(Payload().u32(MAX_LISTED_FILES).frame(Kind.LIST, number))
            while (frame := await self._reply(number)).kind is Kind.ENTRIES:
                files += _entries(frame)
                if len(files) > MAX_LISTED_FILES:
                    self._break("more files than the limit")
        finally:
            del self._replies[number]
        return FileListing(tuple(files), truncated=Fields(frame.payload).u32() != 0)

    async def stats(self) -> Usage:
        """Return the use of the container. Raises SandboxDied."""
        fields = Fields((await self._ask(Kind.STATS, Payload())).payload)
        return Usage(fields.u32(), fields.u64(), fields.u64())

    @property
    def launcher_pid(self) -> int:
        """The PID of the container's launcher; its child is the container's init."""
        return self._launcher.pid

    @property
    def control_descriptor(self) -> int:
        """The descriptor of the socket to the init."""
        return self._control.fileno()

    async def close(self) -> None:
        """End the container with all its processes; return when nothing of it is left."""
        self._die()
        if self._end is not None:
            await asyncio.shield(self._end)

    @staticmethod
    def _file_error(frame: Frame) -> SandboxFileError:
        fields = Fields(frame.payload)
        return SandboxFileError(fields.text(), fields.text())

    async def _ask(self, kind: Kind, payload: Payload) -> Frame:
        number = next(self._numbers)
        self._replies[number] = asyncio.Queue()
        try:
            await self._send(payload.frame(kind, number))
            return await self._reply(number)
        finally:
            del self._replies[number]

    async def _reply(self, number: int) -> Frame:
        frame = await self._replies[number].get()
        if frame is None:
            raise SandboxDied("the sandbox has ended")
        return frame

    async def _send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Queue a packet; return when the socket has taken it, so that memory stays bounded."""
        if self._end is not None:
            raise SandboxDied("the sandbox has ended")
        self._outgoing.append((packet, list(descriptors)))
        self._flush()
        while self._outgoing and self._end is None:
            if self._drained is None:
                self._drained = self._loop.create_future()
                self._loop.add_writer(self._control.fileno(), self._flush)
            await asyncio.shield(self._drained)

    def _flush(self) -> None:
        while self._outgoing and self._end is None:
            packet, descriptors = self._outgoing[0]
            rights = array.array("i", descriptors)
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
            try:
                self._control.sendmsg([packet], control)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._die()
                return
            self._outgoing.popleft()
        self._wake_senders()

    def _wake_senders(self) -> None:
        if self._drained is not None:
            self._loop.remove_writer(self._control.fileno())
            self._drained.set_result(None)
            self._drained = None

    def _receive(self) -> None:
        for _ in range(16):
            try:
                packet = self._control.recv(MAX_FRAME + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                packet = b""
            if not packet:
                self._die()
                return
            try:
                self._dispatch(Frame.decode(packet))
            except FrameError:
                self._die()
                return

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind is Kind.EXITED:
            status = ExitStatus.from_wait(Fields(frame.payload).u32())
            process = self._processes.pop(frame.request, None)
            if process is not None and not process.exit.done():
                process.exit.set_result(status)
            if frame.request not in self._replies:
                return
        replies = self._replies.get(frame.request)
        if replies is not None:
            replies.put_nowait(frame)

    def _break(self, reason: str) -> None:
        self._die()
        raise SandboxDied(f"the sandbox broke the protocol: {reason}")

    def _die(self) -> None:
        """Close the socket, which ends the container, and wake all who wait."""
        if self._end is not None:
            return
        self._loop.remove_reader(self._control.fileno())
        self._wake_senders()
        self._control.close()
        self._outgoing.clear()
        for replies in self._replies.values():
            replies.put_nowait(None)
        for process in self._processes.values():
            if not process.exit.done():
                process.exit.set_result(ExitStatus(None, 9))
        self._processes.clear()
        self._end = self._loop.create_task(self._wait_for_launcher())

    async def _wait_for_launcher(self) -> None:
        try:
            await asyncio.to_thread(self._launcher.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            await asyncio.to_thread(self._launcher.wait)
        _outer_ids.discard(self._outer_id)
        self.closed.set_result(None)


def _check_path(path: str) -> None:
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} must be a relative path without empty, '.' and '..' parts")


def _entries(frame: Frame) -> list[ListedFile]:
    """Return the files of an ENTRIES frame, without those whose names are not UTF-8."""
    fields = Fields(frame.payload)
    files: list[ListedFile] = []
    while not fields.empty():
        name = fields.data()
        numbers = fields.u64(), fields.u64(), fields.u64()
        try:
            files.append(ListedFile(name.decode(), *numbers))
        except UnicodeDecodeError:
            continue
    return files
