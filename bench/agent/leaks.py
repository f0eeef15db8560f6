"""Calls in many sessions, with kills and time-outs among them, and what is left afterwards."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import os
import random
import signal
import tempfile
from pathlib import Path

import msgspec

from bench.agent.calls import SETTINGS
from bench.agent.figures import Figure, Section
from bench.harness.machine_facts import tree
from penstock.base.errors import ServiceError
from penstock.sandbox.container import Container
from penstock.sandbox.containers import Containers
from penstock.sandbox.types import PythonJob, ShellJob

AT_ONCE = 8
TIMEOUT_S = 0.2
CANCEL_S = 0.02
WATCH_S = 0.2
REAP_S = 10.0
LAUNCHER = "penstock-sandbo"  # as the kernel cuts the name
KINDS = ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")
FIRST_USER, USERS = 0x5000_0000, 1024  # the users of a server's containers
CGROUPS = Path("/sys/fs/cgroup")
ENDLESS = "while True: pass"
PYTHON = "x = {0}\nopen('file{0}.txt', 'w').write('a' * 1000)\nprint(x)"
CHILDREN = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)"
KILLED = "import os\nos.kill(os.getpid(), 9)"
# (weight, name of the call)
MIX = (
    (600, "python"),
    (250, "shell"),
    (40, "python_timeout"),
    (20, "shell_timeout"),
    (40, "python_killed"),
    (20, "init_killed"),
    (20, "cancelled"),
    (10, "children"),
)


class Traces(msgspec.Struct, frozen=True):
    """The resources of a process at one moment."""

    processes: int
    files: int
    descriptors: int
    threads: int


def measure(calls: int, sessions: int) -> Section:
    """Make `calls` calls in `sessions` sessions and count what is left of them."""
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        os.environ["TMPDIR"] = folder
        try:
            return asyncio.run(_measure(calls, sessions, Path(folder)))
        finally:
            tempfile.tempdir = before
            os.environ.pop("TMPDIR")


async def _measure(calls: int, sessions: int, folder: Path) -> Section:
    settings = msgspec.structs.replace(SETTINGS, max_containers=sessions + AT_ONCE)
    await _warm_up(settings.max_containers)
    before = _traces(folder)
    counts: collections.Counter[str] = collections.Counter()
    seen: set[tuple[str, int]] = set()
    made = Containers(settings)
    watch = asyncio.create_task(_watch(seen))
    numbers = iter(range(calls))
    try:
        workers = [_work(made, numbers, sessions, counts, seed) for seed in range(AT_ONCE)]
        await asyncio.gather(*workers)
        most = made.running
    finally:
        watch.cancel()
        await made.close()
    await _wait_until_reaped()
    gc.collect()
    after = _traces(folder)
    strays = _pids_of_containers()
    left = {
        "processes": after.processes - before.processes + len(strays),
        "files in the temporary folder": after.files - before.files,
        "descriptors": after.descriptors - before.descriptors,
        "namespaces": len(seen & _namespaces(strays)),
        "cgroups": len([*CGROUPS.rglob(f"penstock-{os.getpid()}-*")]),
        "running containers": made.running,
    }
    name = f"of {calls:,} calls in {sessions} sessions, {{}} left"
    figures = tuple(Figure(name.format(what), count, "", 0, 0) for what, count in left.items())
    details = {
        "calls": dict(counts),
        "containers_at_the_end": most,
        "namespaces_seen": len(seen),
        "threads": [before.threads, after.threads],
        "strays": [_description(pid) for pid in strays],
    }
    return Section(figures, details)


async def _warm_up(sessions: int) -> None:
    """Start and end a container, so that threads and descriptors that stay are there already."""
    made = Containers(msgspec.structs.replace(SETTINGS, max_containers=sessions))
    containers = [await made.container(f"cntr_warm{number}") for number in range(AT_ONCE)]
    await asyncio.gather(*(c.run_python(PythonJob(code="x = 1")) for c in containers))
    await made.close()


async def _wait_until_reaped() -> None:
    """Wait for the machine's init, which reaps the inits whose launchers were killed."""
    for _ in range(round(REAP_S / WATCH_S)):
        await asyncio.sleep(WATCH_S)
        if not _pids_of_containers():
            return


async def _work(
    made: Containers,
    numbers: collections.abc.Iterator[int],
    sessions: int,
    counts: collections.Counter[str],
    seed: int,
) -> None:
    draws = random.Random(seed)
    weights, names = zip(*MIX, strict=True)
    for number in numbers:
        (name,) = draws.choices(names, weights)
        container = await made.container(f"cntr_{draws.randrange(sessions)}")
        try:
            status = await _call(container, name, number)
        except ServiceError as error:
            status = error.code or "refused"
        counts[f"{name}: {status}"] += 1


async def _call(container: Container, name: str, number: int) -> str:
    match name:
        case "shell":
            return (await container.run_shell(ShellJob(commands=("echo a > b", "cat b")))).status
        case "shell_timeout":
            job = ShellJob(commands=("sleep 1000 & sleep 1000",), timeout_s=TIMEOUT_S)
            return (await container.run_shell(job)).status
        case "cancelled":
            return await _cancelled(container)
        case "init_killed":
            kill = asyncio.create_task(_kill_an_init(number))
            result = await container.run_python(PythonJob(code=ENDLESS, timeout_s=TIMEOUT_S))
            await kill
            return result.status
    code = {
        "python": PYTHON.format(number % 7),
        "python_timeout": ENDLESS,
        "python_killed": KILLED,
        "children": CHILDREN,
    }[name]
    timeout_s = TIMEOUT_S if name == "python_timeout" else 60.0
    return (await container.run_python(PythonJob(code=code, timeout_s=timeout_s))).status


async def _cancelled(container: Container) -> str:
    call = asyncio.create_task(container.run_python(PythonJob(code=ENDLESS)))
    await asyncio.sleep(CANCEL_S)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    return "cancelled"


async def _kill_an_init(number: int) -> None:
    """Kill the init of one container, or for every fourth its launcher."""
    await asyncio.sleep(TIMEOUT_S / 2)
    launchers = _launchers()
    if not launchers:
        return
    victim = launchers[number % len(launchers)]
    inits = tree(victim)[1:2]
    if number % 4 and inits:
        victim = inits[0]
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)


def _launchers() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if _name(int(pid)) == LAUNCHER]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def _watch(seen: set[tuple[str, int]]) -> None:
    """Collect the namespaces of all containers while they run."""
    own = _namespaces([os.getpid()])
    while True:
        for launcher in _launchers():
            seen |= _namespaces(tree(launcher)[1:2]) - own
        await asyncio.sleep(WATCH_S)


def _namespaces(pids: list[int]) -> set[tuple[str, int]]:
    found = set()
    for pid in pids:
        for kind in KINDS:
            with contextlib.suppress(OSError):
                found.add((kind, os.stat(f"/proc/{pid}/ns/{kind}").st_ino))
    return found


def _pids_of_containers() -> list[int]:
    """Return all processes of this machine with a user of this process's containers. The number of
    a namespace alone proves nothing: the kernel uses it again for other programs."""
    first = FIRST_USER + os.getpid() % 65536 * USERS
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return [pid for pid in pids if first <= _user(pid) < first + USERS]


def _description(pid: int) -> str:
    """Return name, state, parent and namespaces of a process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return f"{pid}: has ended"
    wanted = ("Name", "State", "PPid", "NSpid")
    return " ".join(" ".join(line.split()) for line in status if line.split(":")[0] in wanted)


def _user(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))


def _traces(folder: Path) -> Traces:
    return Traces(
        processes=len(tree(os.getpid())) - 1,
        files=sum(1 for _ in folder.rglob("*")),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
    )
