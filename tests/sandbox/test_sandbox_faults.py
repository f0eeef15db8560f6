"""Containers whose parts are killed, and inits and servers that do not follow the protocol."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable

import psutil
import pytest

from penstock.config.settings import SandboxSettings
from penstock.sandbox.launcher import Sandbox, SandboxDied, SandboxSpec
from penstock.sandbox.process import SandboxProcess
from penstock.sandbox.wire import MAX_FRAME, MAX_PAYLOAD, Fields, Frame, FrameError, Kind, Payload
from tests.sandbox.confined import (
    ENVIRONMENT,
    all_gone,
    finish,
    host_processes,
    launched,
    shell,
    started,
)

SLEEPER = "setsid sleep 1000 & (sleep 1000 &)\necho started; sleep 1000"
MODES = ("on", "off")


def container_folders(server: int) -> set[str]:
    """Return the folders of the containers of a server process. Other tests have containers too."""
    return {name for name in os.listdir("/tmp") if name.startswith(f"penstock-sandbox-{server}-")}


async def expect_death(sandbox: Sandbox, process: SandboxProcess) -> None:
    """Check that everyone who waits for the container learns of its death."""
    assert (await process.wait()).signal == 9
    await sandbox.closed
    for request in (
        lambda: sandbox.spawn(["/bin/true"], {}),
        lambda: sandbox.list_files(),
        lambda: sandbox.read_file("x", 1),
        lambda: sandbox.write_file("x", b""),
        lambda: sandbox.stats(),
        lambda: process.signal(9),
        lambda: sandbox.kill_all(),
    ):
        with pytest.raises(SandboxDied):
            await request()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("victim", ["launcher", "init"])
async def test_a_killed_launcher_or_init_leaves_nothing(mode: str, victim: str) -> None:
    folders = container_folders(os.getpid())
    async with launched(SandboxSettings(mode=mode)) as sandbox:  # type: ignore[arg-type]
        process = await started(sandbox, SLEEPER)
        processes = host_processes(sandbox)
        processes[["launcher", "init"].index(victim)].kill()
        await expect_death(sandbox, process)
        await all_gone(processes)
    assert container_folders(os.getpid()) == folders


@pytest.mark.parametrize("mode", MODES)
async def test_a_killed_program_is_reported_and_the_container_goes_on(mode: str) -> None:
    async with launched(SandboxSettings(mode=mode)) as sandbox:  # type: ignore[arg-type]
        process = await started(sandbox, "echo started; exec sleep 1000")
        host_processes(sandbox)[-1].kill()
        assert (await process.wait()).signal == 9
        assert (await shell(sandbox, "echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("mode", MODES)
async def test_a_killed_server_leaves_nothing(mode: str) -> None:
    report_read, report_write = os.pipe()
    server = os.fork()
    if server == 0:

        async def serve() -> None:
            sandbox = await Sandbox.launch(
                SandboxSpec(settings=SandboxSettings(mode=mode))  # type: ignore[arg-type]
            )
            await started(sandbox, SLEEPER)
            pids = [str(process.pid) for process in host_processes(sandbox)]
            os.write(report_write, " ".join(pids).encode())
            await sandbox.closed

        asyncio.new_event_loop().run_until_complete(serve())
        os._exit(0)
    pids = (await asyncio.to_thread(os.read, report_read, 1000)).decode().split()
    processes = [psutil.Process(int(pid)) for pid in pids]
    assert len(processes) >= 6
    os.kill(server, signal.SIGKILL)
    os.waitpid(server, 0)
    await all_gone(processes)
    assert container_folders(server) == set()
    os.close(report_read)
    os.close(report_write)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
async def test_many_containers_leave_nothing(mode: str) -> None:
    me = psutil.Process()
    folders = container_folders(os.getpid())
    async with launched():
        pass
    before = me.num_fds(), len(os.listdir("/proc/self/task")), len(me.children(recursive=True))
    for number in range(30):
        async with launched(SandboxSettings(mode=mode)) as sandbox:  # type: ignore[arg-type]
            process = await started(sandbox, SLEEPER)
            if number % 3 == 0:
                await process.signal(9)
                await finish(process)
            process.close()
    after = me.num_fds(), len(os.listdir("/proc/self/task")), len(me.children(recursive=True))
    # The event loop keeps a few threads for its own use.
    assert after[0] == before[0]
    assert after[1] <= before[1] + 32
    assert after[2] == before[2]
    assert container_folders(os.getpid()) == folders


async def test_a_cancelled_call_leaves_no_program(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.spawn(["/bin/sleep", "1000"], ENVIRONMENT))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await shell(sandbox, "ps ax -o args | grep -c '[s]leep'")).stdout == "0\n"


GARBAGE: dict[str, bytes] = {
    "short": b"x",
    "unknown kind": Payload().frame(Kind.USAGE, 1)[:2].replace(b"\x4a", b"\xff") + b"\0" * 6,
    "kind of an init": Payload().frame(Kind.READY, 1),
    "second spec": Payload().frame(Kind.SPEC, 1),
    "reserved bits": Payload().frame(Kind.STATS, 1)[:2] + b"\1\0" + b"\0" * 4,
    "truncated text": Payload().u64(1).u32(1000).frame(Kind.READ, 1),
    "huge count": Payload().u32(0).text("/").u32(0xFFFFFFFF).frame(Kind.SPAWN, 1),
    "spawn without descriptors": Payload()
    .u32(0)
    .text("/")
    .texts(["/bin/true"])
    .texts([])
    .frame(Kind.SPAWN, 1),
    "write outside": Payload().u32(0).u32(0o644).text("../x").frame(Kind.WRITE_BEGIN, 1),
    "set-user-id file": Payload().u32(0).u32(0o4755).text("x").frame(Kind.WRITE_BEGIN, 1),
    "data without a file": Payload().frame(Kind.WRITE_DATA, 1) + b"x",
    "end without a file": Payload().frame(Kind.WRITE_END, 1),
    "signal 0": Payload().u32(1).u32(0).frame(Kind.SIGNAL, 1),
    "signal 1000": Payload().u32(1).u32(1000).frame(Kind.SIGNAL, 1),
    "more than all": Payload().frame(Kind.STATS, 1) + b"x",
    "too long": b"\x0a" + b"\0" * (MAX_FRAME + 10),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_ends_the_container_only(name: str) -> None:
    async with launched() as broken, launched() as other:
        process = await started(broken, SLEEPER)
        processes = host_processes(broken)
        with socket.socket(fileno=os.dup(broken.control_descriptor)) as control:
            control.send(GARBAGE[name])
        await expect_death(broken, process)
        await all_gone(processes)
        assert (await shell(other, "echo alive")).stdout == "alive\n"


@pytest.mark.parametrize(
    "packet",
    [b"", b"\0" * 7, b"\xff" * 8, Payload().frame(Kind.SPAWN, 1), b"\x43\0\1\0\0\0\0\0",
     b"\x43\0\0\0\0\0\0\0" + b"x" * (MAX_PAYLOAD + 1)],
)  # fmt: skip
def test_a_packet_that_is_no_frame_of_an_init_is_refused(packet: bytes) -> None:
    with pytest.raises(FrameError):
        Frame.decode(packet)


def test_a_payload_that_ends_early_is_refused() -> None:
    with pytest.raises(FrameError):
        Fields(b"\x05\0\0\0abc").text()
    with pytest.raises(FrameError):
        Fields(b"\x05").u64()


@pytest.mark.parametrize(
    "spawn",
    [
        lambda s: s.spawn(["/bin/echo", "x" * 70_000], {}),
        lambda s: s.spawn(["/bin/echo", "a\0b"], {}),
        lambda s: s.spawn(["/bin/echo"], {"A": "b\0c"}),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_before_they_are_sent(
    sandbox: Sandbox, spawn: Callable[[Sandbox], Awaitable[object]]
) -> None:
    with pytest.raises(ValueError, match=r"null bytes|at most"):
        await spawn(sandbox)
    assert (await shell(sandbox, "echo alive")).stdout == "alive\n"


async def test_a_program_that_does_not_exist_is_an_error_with_its_name(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, match="/bin/nothing: No such file"):
        await sandbox.spawn(["/bin/nothing"], {})
    with pytest.raises(OSError, match="No such file"):
        await sandbox.spawn(["/bin/true"], {}, cwd="/nowhere")


async def test_files_of_all_sizes_come_back_as_they_were_written(sandbox: Sandbox) -> None:
    for size in (0, 1, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 5_000_000):
        data = os.urandom(size)
        await sandbox.write_file(f"a/b/{size}", data)
        assert await sandbox.read_file(f"a/b/{size}", size) == data
    listing = await sandbox.list_files()
    assert sum(file.size_bytes for file in listing.files) == 5_000_000 + 3 * MAX_PAYLOAD + 1


async def test_large_files_do_not_stop_other_requests(sandbox: Sandbox) -> None:
    await shell(sandbox, "head -c 100000000 /dev/zero > big")
    reads = [asyncio.create_task(sandbox.read_file("big", 1 << 30)) for _ in range(2)]
    for number in range(20):
        assert (await shell(sandbox, f"echo {number}")).stdout == f"{number}\n"
    assert {len(await read) for read in reads} == {100_000_000}
