"""Modes of the sandbox, as root and as an ordinary user, with and without namespaces."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.config.settings import SandboxSettings
from penstock.sandbox import layers
from penstock.sandbox.launcher import (
    MissingLayer,
    Sandbox,
    SandboxFileError,
    SandboxSpec,
    SandboxStartError,
    probe,
    require_layers,
)
from penstock.sandbox.types import Layers
from tests.sandbox import test_escapes_of_files as files
from tests.sandbox import test_escapes_of_processes as processes
from tests.sandbox.confined import (
    ORDINARY_USER,
    PASSED,
    PR_SET_SECCOMP,
    PYTHON,
    host_processes,
    launched,
    python,
    run_as_ordinary_user,
    run_without_namespaces,
    run_without_system_call,
    shell,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user: needs root")

ESCAPES: list[Callable[[Sandbox], Awaitable[None]]] = [
    files.test_a_symlink_is_not_an_output,
    files.test_a_fifo_neither_blocks_nor_is_read,
    files.test_an_input_replaces_a_planted_link_and_leaves_its_target,
    files.test_programs_cannot_change_skills,
    files.test_no_device_can_be_made,
    processes.test_a_program_can_kill_neither_init_nor_its_supervisor_nor_another_program,
    processes.test_a_program_cannot_read_or_limit_another_one,
    processes.test_killing_the_others_keeps_a_program_and_its_children,
]


@needs_root
@pytest.mark.parametrize("escape", ESCAPES)
def test_an_ordinary_users_container_holds(escape: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with launched() as sandbox:
            assert os.geteuid() == ORDINARY_USER
            await escape(sandbox)

    assert run_as_ordinary_user(scenario) == PASSED


@needs_root
def test_an_ordinary_users_fork_bomb_reaches_the_limit() -> None:
    assert run_as_ordinary_user(processes.test_a_fork_bomb_reaches_the_limit_and_ends) == PASSED


@needs_root
async def test_each_container_of_root_has_an_unprivileged_user_of_its_own() -> None:
    async with launched() as first, launched() as second:
        users = [
            process.uids().real
            for sandbox in (first, second)
            for process in host_processes(sandbox)[1:]
        ]
    assert len(set(users)) == 2
    assert min(users) >= 0x5000_0000


async def check_fallback() -> None:
    async with launched(SandboxSettings(mode="auto")) as sandbox:
        held = sandbox.layers
        assert not held.namespaces
        assert (held.landlock, held.seccomp, held.limits) == (True, True, True)
        assert held.network == "none"
        assert {layer for layer, _ in held.missing} >= {"namespaces", "network"}
        folder = sandbox.working_directory
        result = await shell(
            sandbox,
            f"pwd; echo x > out; echo x > $TMPDIR/t; echo x > {folder}/../x; cat /root/.profile;"
            "cat /etc/shadow; kill -9 1; kill -9 $PPID; echo x > /tmp/y; ls /tmp; echo end",
        )
        assert result.stdout == f"{folder}\nend\n"
        assert await sandbox.read_file("out", 10) == b"x\n"
        refused = await python(sandbox, "import socket; socket.socket(socket.AF_UNIX)")
        assert "PermissionError" in refused.stderr
        for target in ("/etc/hostname", f"{folder}/out"):
            await shell(sandbox, f"rm -f linked; ln {target} linked")
            with pytest.raises(SandboxFileError):
                await sandbox.read_file("linked", 10)
        await sandbox.write_file("skills/a/SKILL.md", b"safe", read_only=True)
        changed = await shell(sandbox, "echo x > skills/a/SKILL.md; cat skills/a/SKILL.md")
        assert changed.stdout == "safe"
    assert not Path(folder).parent.exists()
    with pytest.raises(MissingLayer, match="namespaces") as raised:
        await Sandbox.launch(SandboxSpec(settings=SandboxSettings(mode="on")))
    assert raised.value.layer == "namespaces"


# layer: (system call on x86_64, on aarch64, first argument)
LAYER_CALLS = {"landlock": (444, 444, None), "seccomp": (157, 167, PR_SET_SECCOMP)}


@pytest.mark.parametrize("layer", LAYER_CALLS)
def test_a_layer_that_the_kernel_lacks_is_named_in_auto_and_refused_in_on(layer: str) -> None:
    on_x86_64, on_aarch64, argument = LAYER_CALLS[layer]
    number = on_x86_64 if platform.machine() == "x86_64" else on_aarch64

    async def scenario() -> None:
        async with launched(SandboxSettings(mode="auto")) as sandbox:
            assert sandbox.layers.namespaces
            assert not getattr(sandbox.layers, layer)
            assert layer in dict(sandbox.layers.missing)
            assert (await shell(sandbox, "echo alive")).stdout == "alive\n"
        with pytest.raises(MissingLayer) as raised:
            await Sandbox.launch(SandboxSpec(settings=SandboxSettings(mode="on")))
        assert raised.value.layer == layer
        layers._probe.cache_clear()
        with pytest.raises(MissingLayer, match=layer):
            require_layers(SandboxSettings(mode="on"))

    assert run_without_system_call(scenario, number, argument) == PASSED


@needs_root
@pytest.mark.parametrize("user", [0, ORDINARY_USER])
def test_without_namespaces_auto_keeps_the_other_layers_and_on_refuses(user: int) -> None:
    assert run_without_namespaces(check_fallback, user) == PASSED


@needs_root
@pytest.mark.parametrize("user", [0, ORDINARY_USER])
@pytest.mark.parametrize("child", processes.DETACHED)
def test_without_namespaces_detached_children_die(user: int, child: str) -> None:
    async def scenario() -> None:
        async with launched(SandboxSettings(mode="auto")) as sandbox:
            await processes.test_detached_children_die_with_their_program(sandbox, child)

    assert run_without_namespaces(scenario, user) == PASSED


async def test_mode_off_gives_a_folder_and_kills_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
    async with launched(SandboxSettings(mode="off")) as sandbox:
        assert sandbox.layers == Layers()
        folder = sandbox.working_directory
        result = await shell(sandbox, "env; pwd; echo x > out")
        assert "secret" not in result.stdout
        assert f"\n{folder}\n" in result.stdout
        assert await sandbox.read_file("out", 10) == b"x\n"
    assert not Path(folder).exists()


@pytest.mark.parametrize("child", processes.DETACHED)
async def test_mode_off_kills_detached_children(child: str) -> None:
    async with launched(SandboxSettings(mode="off")) as sandbox:
        await processes.test_detached_children_die_with_their_program(sandbox, child)


@pytest.mark.parametrize("mode", ["on", "off"])
async def test_a_folder_of_the_host_keeps_its_files(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "session"
    spec = SandboxSpec(settings=SandboxSettings(mode=mode), host_workdir=str(folder))  # type: ignore[arg-type]
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.stat().st_uid == os.geteuid() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    for number in range(2):
        sandbox = await Sandbox.launch(spec)
        result = await shell(sandbox, f"echo {number} >> log; cat log")
        await sandbox.close()
    assert result.stdout == "0\n1\n"
    assert (folder / "log").read_text() == "0\n1\n"


async def test_folders_of_the_host_are_readable_only_if_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "named" / "a").write_text("readable")
    (tmp_path / "other").write_text("secret")
    spec = SandboxSpec(
        settings=SandboxSettings(mode="on"), read_only=(str(tmp_path / "named"), "/nowhere")
    )
    sandbox = await Sandbox.launch(spec)
    result = await shell(
        sandbox, f"cat {tmp_path}/named/a {tmp_path}/other; echo x > {tmp_path}/named/b"
    )
    await sandbox.close()
    assert result.stdout == "readable"
    assert not (tmp_path / "named" / "b").exists()


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/", "/a//b", ""])
async def test_a_read_only_path_that_is_not_normal_is_refused(path: str) -> None:
    with pytest.raises(SandboxStartError, match="spec"):
        await Sandbox.launch(SandboxSpec(read_only=(path,)))


async def test_the_probe_agrees_with_a_container(sandbox: Sandbox) -> None:
    settings = SandboxSettings(mode="on")
    assert probe(settings) == sandbox.layers == require_layers(settings)
    assert probe(SandboxSettings(mode="off")) == Layers()
    printed = subprocess.run([layers.BINARY, "--probe"], capture_output=True, check=True)
    assert json.loads(printed.stdout)["namespaces"] is True


def test_a_missing_layer_is_named() -> None:
    def check() -> Callable[[], Awaitable[None]]:
        async def scenario() -> None:
            layers._probe.cache_clear()
            with pytest.raises(MissingLayer, match="namespaces"):
                require_layers(SandboxSettings(mode="on"))
            assert dict(probe(SandboxSettings(mode="auto")).missing)["namespaces"] != ""

        return scenario

    if os.geteuid() != 0:
        pytest.skip("changes the user: needs root")
    assert run_without_namespaces(check(), ORDINARY_USER) == PASSED


TOOLS = {
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty "
    "-m x && git log --format=%s",
    "gcc": "echo 'int main(){return 42;}' > a.c && gcc a.c -o a && ./a || echo $?",
    "curl": "curl -s -m 5 http://127.0.0.1:1 || echo $?",
    "tar": "echo x > a && tar cf a.tar a && tar tf a.tar",
}
EXPECTED = {"git": "x\n", "gcc": "42\n", "curl": "7\n", "tar": "a\n"}


@pytest.mark.parametrize("tool", TOOLS)
async def test_common_tools_work(sandbox: Sandbox, tool: str) -> None:
    if (await shell(sandbox, f"command -v {tool}")).stdout == "":
        pytest.skip(f"this machine has no {tool}")
    assert (await shell(sandbox, TOOLS[tool])).stdout == EXPECTED[tool]


async def test_python_programs_can_use_processes_threads_and_event_loops(sandbox: Sandbox) -> None:
    result = await python(
        sandbox,
        "import asyncio, multiprocessing, subprocess, threading, tempfile\n"
        "print(multiprocessing.Pool(2).map(abs, [-1, 2]))\n"
        "print(subprocess.run(['echo', 'x'], capture_output=True, start_new_session=True).stdout)\n"
        "asyncio.run(asyncio.create_subprocess_exec('true'))\n"
        "print(tempfile.gettempdir())\n",
    )
    assert result.stdout == "[1, 2]\nb'x\\n'\n/tmp\n"
    assert PYTHON.startswith("/")
