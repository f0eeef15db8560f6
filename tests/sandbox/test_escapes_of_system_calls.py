"""System calls that programs must not make, and sockets that they must not open."""

from __future__ import annotations

import platform
import socket
from typing import Literal

import pytest

from penstock.config.settings import SandboxSettings
from penstock.sandbox.launcher import Sandbox
from tests.sandbox.confined import launched, python, shell

# name: (number on x86_64, number on aarch64, arguments)
NEW_USER_NAMESPACE = 0x10000000
CALLS: dict[str, tuple[int, int, str]] = {
    "clone(CLONE_NEWUSER)": (56, 220, f"{NEW_USER_NAMESPACE | 17}, 0, 0, 0, 0"),
    "clone(CLONE_NEWNS)": (56, 220, f"{0x20000 | 17}, 0, 0, 0, 0"),
    "clone(CLONE_NEWNET)": (56, 220, f"{0x40000000 | 17}, 0, 0, 0, 0"),
    "clone3": (435, 435, "ctypes.create_string_buffer(88), 88"),
    "unshare": (272, 97, f"{NEW_USER_NAMESPACE}"),
    "setns": (308, 268, "0, 0"),
    "mount": (165, 40, "b'x', b'/mnt', b'tmpfs', 0, 0"),
    "umount2": (166, 39, "b'/mnt/data/skills', 2"),
    "pivot_root": (155, 41, "b'.', b'.'"),
    "chroot": (161, 51, "b'/tmp'"),
    "open_tree": (428, 428, "-100, b'/', 1"),
    "move_mount": (429, 429, "-100, b'/tmp', -100, b'/mnt', 0"),
    "fsopen": (430, 430, "b'tmpfs', 0"),
    "mount_setattr": (442, 442, "-100, b'/', 0, ctypes.create_string_buffer(32), 32"),
    "ptrace": (101, 117, "0, 0, 0, 0"),
    "process_vm_readv": (310, 270, "1, 0, 0, 0, 0, 0"),
    "process_vm_writev": (311, 271, "1, 0, 0, 0, 0, 0"),
    "pidfd_getfd": (438, 438, "0, 0, 0"),
    "process_madvise": (440, 440, "0, 0, 0, 0, 0"),
    "kcmp": (312, 272, "1, 1, 0, 0, 0"),
    "userfaultfd": (323, 282, "0"),
    "memfd_create": (319, 279, "b'x', 0"),
    "open_by_handle_at": (304, 265, "0, 0, 0"),
    "name_to_handle_at": (303, 264, "0, 0, 0, 0, 0"),
    "io_uring_setup": (425, 425, "8, ctypes.create_string_buffer(120)"),
    "add_key": (248, 217, "b'user', b'x', b'y', 1, -3"),
    "request_key": (249, 218, "b'user', b'x', 0, -3"),
    "keyctl": (250, 219, "0, -3, 0"),
    "bpf": (321, 280, "0, ctypes.create_string_buffer(128), 128"),
    "perf_event_open": (298, 241, "ctypes.create_string_buffer(128), 0, -1, -1, 0"),
    "seccomp": (317, 277, "1, 0, 0"),
    "shmget": (29, 194, "0, 4096, 0o1777"),
    "msgget": (68, 186, "0, 0o1777"),
    "semget": (64, 190, "0, 1, 0o1777"),
    "fanotify_init": (300, 262, "0, 0"),
    "syslog": (103, 116, "10, 0, 0"),
    "reboot": (169, 142, "0, 0, 0, 0"),
    "kexec_load": (246, 104, "0, 0, 0, 0"),
    "init_module": (175, 105, "0, 0, 0"),
    "swapon": (167, 224, "b'/x', 0"),
    "sethostname": (170, 161, "b'x', 1"),
    "clock_settime": (227, 112, "0, ctypes.create_string_buffer(16)"),
    "quotactl": (179, 60, "0, 0, 0, 0"),
    "acct": (163, 89, "0"),
    "sync": (162, 81, ""),
}
PERSONALITY = (135, 92)
REFUSALS = (1, 38)  # EPERM, ENOSYS

CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall({number}, {arguments})
print(result, ctypes.get_errno(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("name", CALLS)
async def test_a_dangerous_system_call_is_refused(sandbox: Sandbox, name: str) -> None:
    on_x86_64, on_aarch64, arguments = CALLS[name]
    number = on_x86_64 if platform.machine() == "x86_64" else on_aarch64
    result = await python(sandbox, CALL.format(number=number, arguments=arguments))
    returned, errno = result.stdout.split()
    assert (int(returned), int(errno) in REFUSALS) == (-1, True)


async def test_a_persona_that_weakens_memory_protection_is_refused(sandbox: Sandbox) -> None:
    number = PERSONALITY[platform.machine() != "x86_64"]
    result = await python(sandbox, CALL.format(number=number, arguments="0x0400000"))
    assert result.stdout == "-1 1\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 exists on x86_64 only")
async def test_calls_of_the_x32_interface_do_not_exist(sandbox: Sandbox) -> None:
    result = await python(sandbox, CALL.format(number=0x40000000 + 39, arguments=""))
    assert result.stdout == "-1 38\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="int 0x80 exists on x86_64 only")
async def test_a_call_of_the_32_bit_interface_kills_the_program(sandbox: Sandbox) -> None:
    code = (
        "import ctypes, mmap\n"
        "m = mmap.mmap(-1, 4096, prot=7)\n"
        # mov eax, 20 (getpid); int 0x80; ret
        "m.write(bytes.fromhex('b814000000cd80c3'))\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "print(f())\n"
    )
    result = await python(sandbox, code)
    assert result.stdout == ""
    assert result.status.signal == 31


async def test_a_program_has_no_rights_and_gets_none(sandbox: Sandbox) -> None:
    status = (await shell(sandbox, "cat /proc/self/status")).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "0" * 16
    }
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert fields["Uid"].split() == ["1000"] * 4
    assert fields["Groups"].split() in ([], ["1000"], ["65534"])


async def test_the_terminal_of_the_server_cannot_be_typed_into(sandbox: Sandbox) -> None:
    result = await python(
        sandbox,
        "import fcntl, termios\n"
        "for call in (termios.TIOCSTI, 0x541C, 0x541D):\n"
        "    try: fcntl.ioctl(0, call, b'x')\n"
        "    except PermissionError: print('refused')\n",
    )
    assert result.stdout == "refused\n" * 3


FAMILIES = {
    "internet": "AF_INET, SOCK_STREAM",
    "internet 6": "AF_INET6, SOCK_DGRAM",
    "netlink": "AF_NETLINK, SOCK_DGRAM",
    "packet": "AF_PACKET, SOCK_DGRAM",
    "raw": "AF_INET, SOCK_RAW, 1",
    "vsock": "AF_VSOCK, SOCK_STREAM",
    "kernel crypto": "AF_ALG, SOCK_SEQPACKET",
}


@pytest.mark.parametrize(
    ("network", "opened"),
    [
        ("none", set()),
        ("loopback", {"internet", "internet 6"}),
        ("full", {"internet", "internet 6"}),
    ],
)
async def test_only_the_networks_own_sockets_can_be_opened(
    network: Literal["none", "loopback", "full"], opened: set[str]
) -> None:
    async with launched(SandboxSettings(mode="on", network=network)) as sandbox:
        assert sandbox.layers.network == network
        for family, arguments in FAMILIES.items():
            result = await python(sandbox, f"from socket import *; socket({arguments}); print(1)")
            assert (result.stdout == "1\n") == (family in opened), family


async def test_a_service_of_the_host_is_reached_in_the_full_network_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = f"import socket; socket.create_connection(('127.0.0.1', {port})); print('open')"
        outputs = {}
        for network in ("none", "loopback", "full"):
            async with launched(SandboxSettings(mode="on", network=network)) as sandbox:
                outputs[network] = (await python(sandbox, connect)).stdout
    assert outputs == {"none": "", "loopback": "", "full": "open\n"}


async def test_programs_of_a_container_reach_each_other_over_loopback(sandbox: Sandbox) -> None:
    result = await python(
        sandbox,
        "import socket\n"
        "s = socket.create_server(('127.0.0.1', 0))\n"
        "c = socket.create_connection(s.getsockname()); print('open')\n",
    )
    assert result.stdout == "open\n"


async def test_no_name_is_resolved_without_a_network(sandbox: Sandbox) -> None:
    result = await python(
        sandbox,
        "import socket\n"
        "try: print(socket.getaddrinfo('example.com', 80))\n"
        "except socket.gaierror: print('unknown')\n",
    )
    assert result.stdout == "unknown\n"
    assert (await shell(sandbox, "cat /etc/resolv.conf")).stdout == ""


async def test_containers_do_not_see_each_other() -> None:
    async with launched() as first, launched() as second:
        await shell(first, "echo secret > /tmp/x; echo secret > /dev/shm/x; echo secret > x")
        result = await shell(second, "cat /tmp/x /dev/shm/x x; ls -A /tmp /dev/shm")
        assert "secret" not in result.stdout
