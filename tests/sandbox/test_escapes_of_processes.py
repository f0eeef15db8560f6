"""Programs that try to outlive their call, to reach other processes, or to use up the machine."""

from __future__ import annotations

import pytest

from penstock.config.settings import SandboxSettings
from penstock.sandbox.launcher import Sandbox, SandboxFileError
from tests.sandbox.confined import (
    ENVIRONMENT,
    PYTHON,
    all_gone,
    finish,
    host_processes,
    launched,
    python,
    shell,
    started,
)

DETACHED = [
    "sleep 1000 &",
    "(sleep 1000 &)",
    "setsid sleep 1000 &",
    "nohup setsid sh -c '(sleep 1000 &) ; sleep 1000' >/dev/null 2>&1 &",
    "sh -c 'trap \"\" TERM INT HUP; sleep 1000' &",
]


@pytest.mark.parametrize("child", DETACHED)
async def test_detached_children_die_with_their_program(sandbox: Sandbox, child: str) -> None:
    before = len(host_processes(sandbox))
    process = await started(sandbox, f"{child}\necho started; sleep 1000")
    processes = host_processes(sandbox)[before:]
    assert len(processes) >= 3
    await process.signal(9)
    await all_gone(processes)
    assert (await sandbox.stats()).processes == 0


async def test_children_of_a_program_that_has_exited_can_still_be_killed(sandbox: Sandbox) -> None:
    process = await started(sandbox, "setsid sleep 1000 >/dev/null 2>&1 & echo started")
    assert (await process.wait()).code == 0
    assert (await sandbox.stats()).processes == 1
    await process.signal(9)
    # The pipe of the child closes only when it is dead.
    await finish(process)
    assert (await shell(sandbox, "ps ax -o args | grep -c '[s]leep'")).stdout == "0\n"


async def test_killing_the_others_keeps_a_program_and_its_children(sandbox: Sandbox) -> None:
    kept = await started(sandbox, "sleep 1000 & echo started; wait")
    other = await started(sandbox, "setsid sleep 2000 & echo started; wait")
    await sandbox.kill_others([kept])
    assert (await other.wait()).signal == 9
    assert (await shell(sandbox, "ps ax -o args | grep '^[s]leep'")).stdout == "sleep 1000\n"
    await sandbox.kill_all()
    assert (await kept.wait()).signal == 9


async def test_a_program_sees_only_processes_of_its_container(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "ls /proc | grep -c '^[0-9]'")
    assert int(result.stdout) <= 6


async def test_a_program_can_kill_neither_init_nor_its_supervisor_nor_another_program(
    sandbox: Sandbox,
) -> None:
    other = await started(sandbox, "echo started; sleep 1000")
    result = await python(
        sandbox,
        "import os, signal\n"
        "for pid in [1, os.getppid(), " + str(other.pid) + "]:\n"
        "    for number in (9, 15, 19, 2):\n"
        "        try: os.kill(pid, number); print('sent', pid)\n"
        "        except PermissionError: pass\n"
        "try: os.kill(-1, 9)\n"
        "except PermissionError: pass\n",
    )
    assert result.stdout == ""
    assert not other.exit.done()
    assert (await shell(sandbox, "echo alive")).stdout == "alive\n"


async def test_a_program_cannot_read_or_limit_another_one(sandbox: Sandbox) -> None:
    other = await started(sandbox, "echo started; sleep 1000")
    result = await python(
        sandbox,
        "import os, resource\n"
        f"for pid in (1, {other.pid}):\n"
        "    for name in ('mem', 'environ', 'maps', 'fd/0', 'root/etc/passwd', 'cwd/x'):\n"
        "        try: open(f'/proc/{pid}/{name}', 'rb').read(1); print('read', pid, name)\n"
        "        except OSError: pass\n"
        "    try: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)); print('limited', pid)\n"
        "    except PermissionError: pass\n",
    )
    assert result.stdout == ""
    assert result.status.code == 0


async def test_a_killed_supervisor_leaves_nothing() -> None:
    async with launched() as sandbox:
        process = await started(sandbox, "setsid sleep 1000 & echo started; sleep 1000")
        supervisor = host_processes(sandbox)[2]
        rest = host_processes(sandbox)[2:]
        supervisor.kill()
        await all_gone(rest)
        assert (await process.wait()).signal == 9
        assert (await shell(sandbox, "echo alive")).stdout == "alive\n"


async def test_a_fork_bomb_reaches_the_limit_and_ends() -> None:
    async with launched(SandboxSettings(mode="on", max_procs=20)) as sandbox:
        bomb = await started(sandbox, "echo started; f() { f | f & }; f; sleep 1000")
        counts = [(await sandbox.stats()).processes for _ in range(50)]
        assert max(counts) <= 22
        # The container stays usable for the server, and the bomb ends as a whole.
        await sandbox.write_file("a", b"1")
        await bomb.signal(9)
        await sandbox.kill_all()
        # The first shell may have given up before, when it could not fork.
        await bomb.wait()
        assert (await sandbox.stats()).processes == 0
        assert (await shell(sandbox, "echo alive")).stdout == "alive\n"


async def test_threads_count_as_processes() -> None:
    async with launched(SandboxSettings(mode="on", max_procs=20)) as sandbox:
        result = await python(
            sandbox,
            "import threading\n"
            "stop = threading.Event()\n"
            "threads = []\n"
            "try:\n"
            "    while len(threads) < 100:\n"
            "        t = threading.Thread(target=stop.wait); t.start(); threads.append(t)\n"
            "except RuntimeError: pass\n"
            "stop.set(); print(len(threads))\n",
        )
    assert 10 <= int(result.stdout) <= 20


async def test_one_process_cannot_take_more_than_its_memory() -> None:
    async with launched(SandboxSettings(mode="on", max_memory_mb=256)) as sandbox:
        result = await python(sandbox, "x = bytearray(300 << 20)")
    assert "MemoryError" in result.stderr


async def test_many_processes_together_cannot_take_more_than_the_memory() -> None:
    settings = SandboxSettings(mode="on", max_memory_mb=256)
    async with launched(settings) as sandbox:
        process = await sandbox.spawn(
            [PYTHON, "-c",
             "import os\n"
             "for _ in range(4): os.fork()\n"
             "x = bytearray(os.urandom(1) * (100 << 20))\n"
             "import time; time.sleep(1000)"],
            ENVIRONMENT,
        )  # fmt: skip
        status = await process.wait()
        assert status.signal == 9
        assert (await shell(sandbox, "echo alive")).stdout == "alive\n"


@pytest.mark.parametrize("folder", ["/mnt/data", "/tmp", "/dev/shm"])
async def test_a_full_disk_is_the_containers_own_and_can_be_emptied(folder: str) -> None:
    async with launched(SandboxSettings(mode="on", max_memory_mb=64)) as sandbox:
        result = await shell(sandbox, f"cat /dev/zero > {folder}/fill")
        assert "No space left" in result.stderr
        with pytest.raises(SandboxFileError, match="No space left") as raised:
            await sandbox.write_file("input", b"x" * 100_000)
        assert raised.value.code == "unwritable"
        await shell(sandbox, f"rm {folder}/fill")
        await sandbox.write_file("input", b"x" * 100_000)
        usage = await sandbox.stats()
        assert usage.size_bytes == 64 << 20
        assert usage.used_bytes < 1 << 20


async def test_files_are_limited_in_number() -> None:
    async with launched(SandboxSettings(mode="on", max_memory_mb=64)) as sandbox:
        result = await python(
            sandbox,
            "import os\n"
            "os.mkdir('d')\n"
            "try:\n"
            "    for i in range(10**6): os.close(os.open(f'd/{i}', os.O_CREAT))\n"
            "except OSError as error: print(i, error.strerror)\n",
        )
        number, reason = result.stdout.strip().split(" ", 1)
        assert reason == "No space left on device"
        assert 10_000 < int(number) < 20_000
        listing = await sandbox.list_files()
    assert listing.truncated
    assert len(listing.files) == 10_000


async def test_a_hundred_thousand_files_are_listed_in_part() -> None:
    async with launched() as sandbox:
        await python(
            sandbox,
            "import os\nfor i in range(10**5): os.close(os.open(str(i), os.O_CREAT))\n",
        )
        listing = await sandbox.list_files()
    assert listing.truncated
    assert len(listing.files) == 10_000


async def test_a_deep_folder_does_not_end_the_container(sandbox: Sandbox) -> None:
    await python(
        sandbox,
        "import os\nfor i in range(3000):\n    os.mkdir('d'); os.chdir('d')\n",
    )
    await sandbox.write_file("top.txt", b"1")
    listing = await sandbox.list_files()
    assert listing.truncated
    assert "top.txt" in {file.path for file in listing.files}


async def test_a_sparse_file_is_refused_by_its_size(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "truncate -s 200M sparse; truncate -s 1T huge; ls -s sparse")
    assert result.stdout == "0 sparse\n"
    with pytest.raises(SandboxFileError) as raised:
        await sandbox.read_file("sparse", 1 << 20)
    assert raised.value.code == "too_large"
    # The limit of a file's size stopped the other one.
    assert await sandbox.read_file("huge", 1 << 20) == b""


async def test_a_file_that_shrinks_while_it_is_read_gives_what_is_left(sandbox: Sandbox) -> None:
    await shell(sandbox, "head -c 50000000 /dev/zero > f; echo x > g")
    shrinker = await started(
        sandbox, "echo started; while :; do : > f; head -c 50000000 /dev/zero > f; done"
    )
    for _ in range(5):
        assert len(await sandbox.read_file("f", 50_000_000)) <= 50_000_000
    await shrinker.signal(9)
    assert await sandbox.read_file("g", 10) == b"x\n"


async def test_cpu_time_is_limited() -> None:
    async with launched(SandboxSettings(mode="on", max_cpu_secs=1)) as sandbox:
        result = await shell(sandbox, "while :; do :; done")
    assert result.status.signal in (9, 24)


async def test_no_core_is_dumped_and_files_and_descriptors_are_limited(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "ulimit -c; ulimit -n; ulimit -Hn; ulimit -f; ulimit -c 1 || :")
    core, files, hard_files, blocks = result.stdout.split()[:4]
    assert (core, files, hard_files) == ("0", "1024", "1024")
    assert int(blocks) * 512 == 256 << 20


async def test_an_endless_output_stops_at_the_pipe(sandbox: Sandbox) -> None:
    process = await sandbox.spawn(["/bin/sh", "-c", "yes"], ENVIRONMENT)
    assert (await process.stdout.readexactly(1 << 20)).startswith(b"y\ny\n")
    await process.signal(9)
    assert (await process.wait()).signal == 9
    process.close()


async def test_what_a_program_prints_does_not_reach_its_channel(sandbox: Sandbox) -> None:
    process = await sandbox.spawn(
        ["/bin/sh", "-c", "echo forged; echo real >&3"], ENVIRONMENT, channel=True
    )
    assert process.channel is not None
    assert await process.channel[0].read() == b"real\n"
    assert (await finish(process)).stdout == "forged\n"


async def test_programs_have_a_low_priority(sandbox: Sandbox) -> None:
    done = await python(sandbox, "import os; print(os.getpriority(os.PRIO_PROCESS, 0))")
    assert done.stdout == "10\n"
