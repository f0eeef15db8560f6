"""A Landlock ruleset that allows no access to files, networks and other processes."""

from __future__ import annotations

import ctypes
import struct
from typing import Final

_CREATE_RULESET: Final = 444
_RESTRICT_SELF: Final = 446
_GET_VERSION: Final = 1

# ABI version from which on -> number of kinds of access to files.
_FILE_ACCESSES: Final = ((1, 13), (2, 14), (3, 15), (5, 16))
_NETWORK_ABI: Final = 4
_SCOPES_ABI: Final = 6
_TCP: Final = 3
_SCOPES: Final = 3


def landlock_abi() -> int:
    """Return the version of Landlock in this kernel; 0 if it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, _GET_VERSION)))


def deny_all() -> bool:
    """Deny everything that the kernel's Landlock covers to this thread and threads that it starts.
    Needs no_new_privs or CAP_SYS_ADMIN. Returns whether it holds: older kernels lack Landlock."""
    abi = landlock_abi()
    if abi == 0:
        return False
    accesses = max(count for version, count in _FILE_ACCESSES if version <= abi)
    attributes = struct.pack("<Q", (1 << accesses) - 1)
    if abi >= _NETWORK_ABI:
        attributes += struct.pack("<Q", _TCP)
    if abi >= _SCOPES_ABI:
        attributes += struct.pack("<Q", _SCOPES)
    libc = ctypes.CDLL(None, use_errno=True)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    return bool(ruleset >= 0 and libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
