"""Commands in the shell of a container."""

from __future__ import annotations

import asyncio

import pytest

from penstock.sandbox.container import Container
from penstock.sandbox.types import DeclaredFile
from tests.sandbox_containers.conftest import RunPython, RunShell, until_made

PROCESS_NAMES = "for folder in /proc/[0-9]*; do cat $folder/comm; done 2>/dev/null"


@pytest.mark.parametrize(
    ("commands", "status", "exit_code", "stdout"),
    [
        (("echo a", "echo b"), "success", 0, "a\nb\n"),
        (("false", "echo b"), "success", 0, "b\n"),
        (("echo a", "exit 3"), "error", 3, "a\n"),
        (("cat", "echo b"), "success", 0, "b\n"),
        (("kill -9 $$",), "error", None, ""),
        (("pwd; echo $HOME",), "success", 0, "/mnt/data\n/mnt/data\n"),
    ],
)
async def test_commands_run_in_one_shell(
    shell: RunShell, commands: tuple[str, ...], status: str, exit_code: int | None, stdout: str
) -> None:
    done = await shell(*commands)
    assert (done.status, done.exit_code, done.stdout) == (status, exit_code, stdout)


async def test_only_files_persist_between_shells(shell: RunShell) -> None:
    await shell("export A=1; mkdir folder; cd folder; echo x > file")
    assert (await shell("echo $A; cat folder/file; pwd")).stdout == "\nx\n/mnt/data\n"


async def test_outputs_are_cut_in_characters(shell: RunShell) -> None:
    done = await shell("yes é | head -100000", "echo end", "echo short >&2", max_output_chars=100)
    assert done.stdout.startswith("é\né\n")
    assert done.stdout.endswith("end\n")
    assert "bytes cut" in done.stdout
    assert len(done.stdout) < 140
    assert done.stderr == "short\n"


async def test_a_time_out_kills_all_processes_that_the_shell_started(shell: RunShell) -> None:
    done = await shell(
        "echo begun; setsid nohup sleep 1001 & (sleep 1002 &) ; sleep 1003", timeout_s=0.3
    )
    assert (done.status, done.timed_out, done.exit_code) == ("timeout", True, None)
    assert done.stdout.startswith("begun\n")
    assert "sleep" not in (await shell(PROCESS_NAMES)).stdout.split()


async def test_a_time_out_spares_the_interpreter(python: RunPython, shell: RunShell) -> None:
    await python("x = 1")
    await shell("sleep 1000", timeout_s=0.2)
    done = await python("x")
    assert (done.result, done.state_lost) == ("1", False)


async def test_a_background_process_does_not_hold_the_call(shell: RunShell) -> None:
    done = await shell("sleep 1000 & echo started", timeout_s=60)
    assert (done.status, done.stdout) == ("success", "started\n")
    assert "sleep" in (await shell(PROCESS_NAMES)).stdout.split()


async def test_a_background_process_may_go_on_writing(shell: RunShell) -> None:
    await shell("(while ! test -e go; do :; done; echo a; echo b; echo c > done) &")
    done = await shell("touch go; while ! test -e done; do :; done; cat done", timeout_s=60)
    assert done.stdout == "c\n"


async def test_many_background_processes_keep_a_bounded_number_of_pipes(
    container: Container, shell: RunShell
) -> None:
    for _ in range(20):
        await shell("sleep 1000 &")
    assert len(container._outputs._outputs) <= 16


async def test_a_cancelled_call_kills_its_shell(container: Container, shell: RunShell) -> None:
    call = asyncio.create_task(shell("sleep 1000 & touch began; sleep 1001"))
    await until_made(container, "began", call)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert "sleep" not in (await shell(PROCESS_NAMES)).stdout.split()


@pytest.mark.parametrize("num_steps", range(1, 12))
async def test_a_call_that_is_cancelled_while_its_shell_starts_leaves_no_process(
    container: Container, shell: RunShell, num_steps: int
) -> None:
    await shell("true")
    call = asyncio.create_task(shell("sleep 1000"))
    for _ in range(num_steps):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert "sleep" not in (await shell(PROCESS_NAMES)).stdout.split()


@pytest.mark.parametrize("command", ["echo \0", "echo " + "x" * 200_000])
async def test_commands_that_no_shell_can_take_are_errors(shell: RunShell, command: str) -> None:
    done = await shell(command)
    assert (done.status, done.exit_code) == ("error", None)
    assert done.stderr
    assert (await shell("echo a")).stdout == "a\n"


async def test_a_shell_makes_files(shell: RunShell) -> None:
    outputs = (DeclaredFile("b.txt"), DeclaredFile("no.txt"))
    done = await shell("echo a > a.txt; echo b > b.txt", outputs=outputs)
    assert [(file.name, file.data, file.code) for file in done.files] == [
        ("b.txt", b"b\n", None),
        ("no.txt", None, "not_produced"),
        ("a.txt", b"a\n", None),
    ]


async def test_the_shells_python_is_the_python_tools(python: RunPython, shell: RunShell) -> None:
    done = await shell("python3 -c 'import sys; print(sys.prefix)'")
    assert (await python("import sys; print(sys.prefix)")).stdout == done.stdout
