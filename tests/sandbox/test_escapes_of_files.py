"""Programs that try to make the server read, write or wait outside the container."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import pytest

from penstock.sandbox.launcher import Sandbox, SandboxFileError
from tests.sandbox.confined import launched, python, shell, started


async def code_of(sandbox: Sandbox, path: str, max_bytes: int = 1000) -> str:
    """Return the error code of a read that must fail."""
    with pytest.raises(SandboxFileError) as raised:
        await sandbox.read_file(path, max_bytes)
    return raised.value.code


async def test_a_symlink_is_not_an_output(sandbox: Sandbox) -> None:
    await shell(sandbox, "ln -s /etc/passwd key.txt; mkdir d; echo x > d/f; ln -s d linked")
    assert await code_of(sandbox, "key.txt") == "not_a_regular_file"
    assert await code_of(sandbox, "linked/f") == "not_a_regular_file"


@pytest.mark.parametrize("path", ["/etc/passwd", "../../etc/passwd", "a/../../x", "", ".", "a//b"])
async def test_a_path_that_leaves_the_working_directory_is_refused(
    sandbox: Sandbox, path: str
) -> None:
    assert await code_of(sandbox, path) == "not_a_regular_file"


async def test_a_path_with_a_null_byte_names_no_file(sandbox: Sandbox) -> None:
    await sandbox.write_file("a", b"1")
    assert await code_of(sandbox, "a\0b") == "not_produced"


async def test_a_magic_link_of_proc_is_not_followed(sandbox: Sandbox) -> None:
    await shell(sandbox, "ln -s /proc/self/root/etc/passwd a; ln -s /proc/1/fd b")
    assert await code_of(sandbox, "a") == "not_a_regular_file"
    assert await code_of(sandbox, "b/3") == "not_a_regular_file"


async def test_a_fifo_neither_blocks_nor_is_read(sandbox: Sandbox) -> None:
    await shell(sandbox, "mkfifo pipe")
    assert await code_of(sandbox, "pipe") == "not_a_regular_file"


async def test_a_socket_and_a_folder_are_not_outputs(sandbox: Sandbox) -> None:
    await python(sandbox, "import socket; socket.socket(socket.AF_UNIX).bind('s')")
    await shell(sandbox, "mkdir folder")
    assert await code_of(sandbox, "s") == "not_a_regular_file"
    assert await code_of(sandbox, "folder") == "not_a_regular_file"


async def test_no_device_can_be_made(sandbox: Sandbox) -> None:
    result = await python(sandbox, "import os, stat; os.mknod('disk', stat.S_IFBLK, 0xfe00)")
    assert "PermissionError" in result.stderr
    assert await code_of(sandbox, "disk") == "not_produced"


async def test_a_file_of_the_toolchain_cannot_be_linked_into_the_working_directory(
    sandbox: Sandbox,
) -> None:
    result = await shell(sandbox, "ln /usr/bin/env here")
    assert result.status.code != 0
    assert await code_of(sandbox, "here") == "not_produced"


async def test_a_file_that_is_swapped_for_a_link_is_read_whole_or_not_at_all(
    sandbox: Sandbox,
) -> None:
    swapper = await started(
        sandbox,
        "echo safe > plain; ln -s /etc/passwd link; echo safe > out; echo started;"
        "while :; do ln -sfn /etc/passwd t; mv -T t out; cp plain u; mv -T u out; done",
    )
    contents = set()
    for _ in range(300):
        try:
            contents.add(await sandbox.read_file("out", 1000))
        except SandboxFileError as error:
            assert error.code == "not_a_regular_file"
    await swapper.signal(9)
    assert contents <= {b"safe\n"}


async def test_an_input_replaces_a_planted_link_and_leaves_its_target(sandbox: Sandbox) -> None:
    await shell(sandbox, "echo old > /tmp/target; ln -s /tmp/target input.txt")
    await sandbox.write_file("input.txt", b"new")
    assert (await shell(sandbox, "cat /tmp/target; readlink input.txt")).stdout == "old\n"
    assert await sandbox.read_file("input.txt", 10) == b"new"


async def test_an_input_below_a_planted_link_is_refused(sandbox: Sandbox) -> None:
    await shell(sandbox, "ln -s /tmp folder")
    with pytest.raises(SandboxFileError, match="open a folder") as raised:
        await sandbox.write_file("folder/input.txt", b"new")
    assert raised.value.code == "unwritable"
    assert (await shell(sandbox, "ls -A /tmp")).stdout == ""


@pytest.mark.parametrize("path", ["../x", "/x", "a/../b", "", "a\0b"])
async def test_an_input_path_that_leaves_the_working_directory_is_refused(
    sandbox: Sandbox, path: str
) -> None:
    with pytest.raises(ValueError, match="relative path"):
        await sandbox.write_file(path, b"x")


async def test_programs_cannot_change_skills(sandbox: Sandbox) -> None:
    await sandbox.write_file("skills/report/SKILL.md", b"safe", read_only=True)
    result = await shell(
        sandbox,
        "cd skills/report; echo x > SKILL.md; rm -f SKILL.md; chmod 777 SKILL.md; echo x > y;"
        "cd ../..; mv skills s; rm -rf skills; rmdir skills; ln -sfn /tmp skills;"
        "umount skills; cat skills/report/SKILL.md",
    )
    assert result.stdout == "safe"
    await sandbox.write_file("skills/report/SKILL.md", b"newer", read_only=True)
    assert (await shell(sandbox, "cat skills/report/SKILL.md")).stdout == "newer"


async def test_files_of_the_host_are_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    result = await shell(
        sandbox,
        f"cat {tmp_path}/secret /etc/shadow /proc/self/root{tmp_path}/secret;"
        "ls /root /home /sys /run /var/run /boot /opt /srv",
    )
    assert result.stdout == ""
    assert "secret: No such file" in result.stderr
    names = (await shell(sandbox, "ls -A /")).stdout.split()
    assert set(names) <= {
        "bin", "dev", "etc", "lib", "lib32", "lib64", "mnt", "proc", "sbin", "tmp", "usr", "var",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    ["/x", "/usr/x", "/etc/x", "/bin/x", "/dev/x", "/mnt/x", "/var/x", "/etc/passwd",
     "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/acpi/x"],
)  # fmt: skip
async def test_nothing_outside_the_writable_folders_can_be_written(
    sandbox: Sandbox, path: str
) -> None:
    result = await shell(sandbox, f"echo x > {path}")
    assert result.status.code != 0


async def test_a_program_cannot_remount_its_root(sandbox: Sandbox) -> None:
    result = await shell(sandbox, "mount -o remount,rw /usr || mount -t tmpfs x /mnt || echo no")
    assert result.stdout.endswith("no\n")


async def test_the_loader_gives_a_program_no_other_rights(sandbox: Sandbox) -> None:
    result = await shell(
        sandbox, "for l in /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.*; do [ -x $l ] &&"
        "$l /bin/sh -c 'id -u; echo x > /usr/x'; done"
    )  # fmt: skip
    assert result.stdout.startswith("1000\n")
    assert "/usr/x" in result.stderr


async def test_sockets_of_the_host_are_not_reached_through_the_file_system(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        path = str(tmp_path / "s")
        listener.bind(path)
        listener.listen()
        result = await python(
            sandbox, f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
        )
    assert "FileNotFoundError" in result.stderr


async def test_abstract_sockets_of_the_host_are_not_reached_in_any_network() -> None:
    from penstock.config.settings import SandboxSettings

    name = f"\0penstock-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        for network in ("none", "loopback", "full"):
            async with launched(SandboxSettings(mode="on", network=network)) as sandbox:
                result = await python(
                    sandbox, f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
                )
            assert "PermissionError" in result.stderr or "ConnectionRefused" in result.stderr


async def test_hidden_and_built_files_and_links_are_not_listed(sandbox: Sandbox) -> None:
    await shell(
        sandbox,
        "mkdir -p a/b .git node_modules tmp; echo 1 > a/b/c.txt; echo 1 > .git/x; echo 1 > .hidden;"
        "echo 1 > node_modules/x; echo 1 > tmp/x; echo 1 > m.pyc; ln -s a/b/c.txt link; mkfifo p",
    )
    listing = await sandbox.list_files()
    assert [file.path for file in listing.files] == ["a/b/c.txt"]
    assert not listing.truncated


async def test_names_that_are_no_text_are_not_listed(sandbox: Sandbox) -> None:
    await python(sandbox, r"open(b'\xff\xfe', 'w'); open('line\nbreak', 'w'); open('\x1b[2J', 'w')")
    names = {file.path for file in (await sandbox.list_files()).files}
    assert names == {"line\nbreak", "\x1b[2J"}


async def test_the_environment_and_the_descriptors_of_the_server_are_not_inherited(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "secret")
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        async with launched() as fresh:
            result = await shell(fresh, "env; ls /proc/self/fd; cat /proc/1/cmdline | tr -d '\\0'")
            for name in ("environ", "maps", "mem", "fd/0", "root/etc/passwd"):
                assert (await shell(fresh, f"cat /proc/1/{name}")).status.code != 0
    finally:
        os.close(leaked)
    assert "secret" not in result.stdout
    assert "penstock" not in result.stdout
    # Descriptor 3 is ls's own: the open folder.
    assert result.stdout.split()[-4:] == ["0", "1", "2", "3"]
