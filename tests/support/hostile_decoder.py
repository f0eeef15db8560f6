"""A decoding process whose processor does what a client's bytes might do with a hole in a decoder.

The red value of the first pixel of an image selects the attempt.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from penstock.media import worker
from penstock.media.plain_processor import PlainProcessor
from penstock.models.media.prepared import Pixels, PreparedMedia

LIBC = ctypes.CDLL(None, use_errno=True)
HERE = Path(__file__)
PROGRAM = (str(HERE),)
"""The arguments of Python that start this process."""


def _start_thread() -> None:
    threading.Thread(target=print).start()


def _protect_executable() -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _checked(LIBC.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 7))


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


REFUSED: dict[str, Callable[[], object]] = {
    "read a file": lambda: HERE.read_bytes(),
    "write a file": lambda: Path("/tmp/escaped").write_bytes(b""),
    "list a folder": lambda: os.listdir("/"),
    "find out about a file": lambda: os.stat(HERE),
    "remove a file": lambda: os.unlink("/tmp/none"),
    "read the environment of the server": lambda: Path(
        f"/proc/{os.getppid()}/environ"
    ).read_bytes(),
    "change the folder": lambda: os.chdir("/"),
    "make a pipe": lambda: os.pipe(),
    "copy a descriptor": lambda: os.dup(0),
    "send a message with descriptors": lambda: _checked(LIBC.sendmsg(0, b"\0" * 56, 0)),
    "start a thread": _start_thread,
    "fork": lambda: os.fork(),
    "map executable memory": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC),
    "make memory executable": _protect_executable,
    "raise its memory limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
    "limit the server": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
    "become root": lambda: os.setuid(0),
    "change its seccomp filter": lambda: _checked(LIBC.prctl(22, 2, None)),
    "make a user namespace": lambda: _checked(LIBC.unshare(0x10000000)),
    "mount": lambda: _checked(LIBC.mount(b"none", b"/", b"tmpfs", 0, None)),
}
KILLED: dict[str, Callable[[], object]] = {
    "connect to a network": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "use a Unix socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "execute a program": lambda: os.execv("/bin/true", ["true"]),
    "kill the server": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "trace the server": lambda: LIBC.ptrace(16, os.getppid(), 0, 0),
    "crash": lambda: ctypes.string_at(8),
    "exit": lambda: os._exit(0),
    "use too much CPU time": lambda: _spin(),
    "answer with a wrong shape": lambda: PreparedMedia("image", b"abc", "f32", (2, 2)),
    "answer with another kind": lambda: PreparedMedia("audio", bytes(4), "f32", (1,)),
    "answer with a negative size": lambda: PreparedMedia("image", bytes(4), "f32", (-1, -1)),
    "answer with garbage": lambda: os.write(worker_connection(), b"\x04" + bytes(7) + b"abcd"),
    "announce an endless answer": lambda: os.write(worker_connection(), b"\xff" * 16),
}
SURVIVED: dict[str, Callable[[], object]] = {
    "print": lambda: (os.write(1, b"noise" * 1000), os.write(2, b"noise"), print("noise")),
    "close its standard streams": lambda: (os.close(1), os.close(2)),
    "take all memory": lambda: np.ones(1 << 40, np.uint8),
    "raise an exception with a secret": lambda: _raise_secret(),
    "hang": lambda: time.sleep(10_000),
    "ignore signals": lambda: signal.signal(signal.SIGXCPU, signal.SIG_IGN),
}
ATTEMPTS = {**REFUSED, **KILLED, **SURVIVED}
NAMES = list(ATTEMPTS)


def _spin() -> None:
    while True:
        pass


def _raise_secret() -> None:
    raise LookupError(f"secret of {HERE}")


def worker_connection() -> int:
    """The descriptor of the process's connection: the only one beside the standard streams."""
    return 3


def pixels_of(name: str) -> Pixels:
    """The image that selects an attempt."""
    return np.full((2, 2, 3), NAMES.index(name), np.uint8)


class HostileProcessor(PlainProcessor):
    def image(self, pixels: Pixels) -> PreparedMedia:
        """Make the attempt; an errno is returned as the layout, 0 if it succeeded."""
        number = int(pixels[0, 0, 0])
        if number >= len(NAMES):
            return PreparedMedia.of("image", pixels)
        try:
            result = ATTEMPTS[NAMES[number]]()
        except OSError as error:
            return PreparedMedia.of("image", pixels, layout=(error.errno or -1,))
        except (RuntimeError, ValueError):
            return PreparedMedia.of("image", pixels, layout=(-1,))
        if isinstance(result, PreparedMedia):
            return result
        return PreparedMedia.of("image", pixels, layout=(0,))


if __name__ == "__main__":
    original = worker.limit_cpu_time
    worker.limit_cpu_time = lambda seconds: original(0)
    with contextlib.suppress(BrokenPipeError):
        worker.run(lambda files: HostileProcessor())
