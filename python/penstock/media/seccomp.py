"""The seccomp filter of a decoding process: it may compute, and use the descriptors that it has.

`filter_program` assembles the classic BPF program of the filter; `install` gives it to the kernel.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from errno import ENOSYS, EPERM
from typing import Final, NamedTuple

_SECCOMP_CALL: Final[Mapping[str, int]] = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER: Final = 1
_ALL_THREADS: Final = 1
_NO_NEW_PRIVS: Final = 38

_AUDIT_ARCH: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FIRST_X32_CALL: Final = 0x40000000

# Offsets in the kernel's `struct seccomp_data`; arguments are little-endian.
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL_PROCESS: Final = 0x80000000

_PROT_EXEC: Final = 4
_RLIMIT_CPU: Final = 0


class _Call(NamedTuple):
    """The numbers of a system call. None: the architecture lacks it."""

    x86_64: int | None
    aarch64: int | None


_ALLOWED: Final[Mapping[str, _Call]] = {
    "read": _Call(0, 63),
    "write": _Call(1, 64),
    "readv": _Call(19, 65),
    "writev": _Call(20, 66),
    "close": _Call(3, 57),
    "munmap": _Call(11, 215),
    "mremap": _Call(25, 216),
    "madvise": _Call(28, 233),
    "brk": _Call(12, 214),
    "futex": _Call(202, 98),
    "sched_yield": _Call(24, 124),
    "sched_getaffinity": _Call(204, 123),
    "getcpu": _Call(309, 168),
    "membarrier": _Call(324, 283),
    "rseq": _Call(334, 293),
    "set_robust_list": _Call(273, 99),
    "clock_gettime": _Call(228, 113),
    "clock_getres": _Call(229, 114),
    "clock_nanosleep": _Call(230, 115),
    "nanosleep": _Call(35, 101),
    "gettimeofday": _Call(96, 169),
    "time": _Call(201, None),
    "getrusage": _Call(98, 165),
    "sysinfo": _Call(99, 179),
    "getrandom": _Call(318, 278),
    "getpid": _Call(39, 172),
    "gettid": _Call(186, 178),
    "rt_sigaction": _Call(13, 134),
    "rt_sigprocmask": _Call(14, 135),
    "rt_sigreturn": _Call(15, 139),
    "sigaltstack": _Call(131, 132),
    "restart_syscall": _Call(219, 128),
    "exit": _Call(60, 93),
    "exit_group": _Call(231, 94),
}
# No decoder makes these calls, unless its input has taken it over.
_KILLED: Final[Mapping[str, _Call]] = {
    "execve": _Call(59, 221),
    "execveat": _Call(322, 281),
    "fork": _Call(57, None),
    "vfork": _Call(58, None),
    "socket": _Call(41, 198),
    "connect": _Call(42, 203),
    "ptrace": _Call(101, 117),
    "process_vm_readv": _Call(310, 270),
    "process_vm_writev": _Call(311, 271),
    "kill": _Call(62, 129),
    "tkill": _Call(200, 130),
    "tgkill": _Call(234, 131),
    "bpf": _Call(321, 280),
    "io_uring_setup": _Call(425, 425),
    "keyctl": _Call(250, 219),
}
_MMAP: Final = _Call(9, 222)
_MPROTECT: Final = _Call(10, 226)
_PRLIMIT64: Final = _Call(302, 261)
_CLONE3: Final = _Call(435, 435)


class SealError(Exception):
    """This machine cannot confine a decoding process. The message says which part is missing."""


def filter_program(machine: str) -> bytes:
    """Return the filter as `struct sock_filter` entries, for `platform.machine()`.

    - Calls of `_ALLOWED` are allowed; memory may be mapped if it is not executable, and the process
      may change its own limit of CPU time.
    - Calls of `_KILLED` end the process.
    - All other calls fail with EPERM: among them those that open files, which libraries make for
      harmless reasons. `clone3` fails with ENOSYS, as the C library expects.

    Raises SealError if the architecture is not supported.
    """
    if machine not in _AUDIT_ARCH:
        raise SealError(f"system calls of {machine} processors are not known")
    program = [
        _statement(_LOAD, _ARCH),
        _jump(_EQUAL, _AUDIT_ARCH[machine], 1, 0),
        _statement(_RETURN, _KILL_PROCESS),
        _statement(_LOAD, _NUMBER),
        _jump(_AT_LEAST, _FIRST_X32_CALL, 0, 1),
        _statement(_RETURN, _KILL_PROCESS),
    ]
    for call in _ALLOWED.values():
        program += _on_call(getattr(call, machine), [_statement(_RETURN, _ALLOW)])
    for call in _KILLED.values():
        program += _on_call(getattr(call, machine), [_statement(_RETURN, _KILL_PROCESS)])
    not_executable = [
        *_load_argument(2),
        _jump(_ANY_BIT, _PROT_EXEC, 1, 0),
        _statement(_RETURN, _ALLOW),
        _statement(_RETURN, _ERRNO | EPERM),
    ]
    for call in (_MMAP, _MPROTECT):
        program += _on_call(getattr(call, machine), not_executable)
    own_cpu_time = [
        *_load_argument(0),
        _jump(_EQUAL, 0, 0, 3),
        *_load_argument(1),
        _jump(_EQUAL, _RLIMIT_CPU, 0, 1),
        _statement(_RETURN, _ALLOW),
        _statement(_RETURN, _ERRNO | EPERM),
    ]
    program += _on_call(getattr(_PRLIMIT64, machine), own_cpu_time)
    program += _on_call(getattr(_CLONE3, machine), [_statement(_RETURN, _ERRNO | ENOSYS)])
    program.append(_statement(_RETURN, _ERRNO | EPERM))
    return b"".join(program)


def forbid_new_privileges() -> None:
    """Let no program that this process executes gain privileges. Without them, the kernel requires
    this before `install` and before a Landlock ruleset. Raises SealError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise SealError(f"no_new_privs: {os.strerror(ctypes.get_errno())}")


def install() -> None:
    """Apply the filter to all threads of this process, for ever. Raises SealError."""
    machine = platform.machine()
    program = filter_program(machine)
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SECCOMP_CALL[machine], _SET_MODE_FILTER, _ALL_THREADS, header) != 0:
        raise SealError(f"seccomp: {os.strerror(ctypes.get_errno())}")


def _statement(code: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _load_argument(index: int) -> list[bytes]:
    """Load the lower half of an argument. The upper half is not checked: the kernel reads these
    arguments as 32-bit integers, or refuses larger values."""
    return [_statement(_LOAD, _ARGUMENTS + 8 * index)]


def _on_call(number: int | None, body: list[bytes]) -> list[bytes]:
    """Run `body`, which ends with a return, for one system call. The number stays loaded for the
    following instructions, since the body does not fall through."""
    return [] if number is None else [_jump(_EQUAL, number, 0, len(body)), *body]
