"""Runs the command of an MCP server and ends its whole process group with it, or with the parent.

    python stdio_guard.py LIFELINE COMMAND ARGUMENT...

`LIFELINE` is the number of a descriptor whose other end the parent holds. It is closed when the
parent closes it or dies, however it dies. The file is run as a script in a bare interpreter: it
imports nothing of Penstock.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def main() -> None:
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(lifeline)
        _die_with(guard)
        _execute(command)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    # The parent sends SIGTERM to the group; the guard stays to kill what ignores it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_kill_group_after, args=(lifeline,), daemon=True).start()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    how = f"status {code}" if code >= 0 else f"signal {-code}"
    os.write(2, f"\nthe process ended with {how}\n".encode())
    os.killpg(0, signal.SIGKILL)


def _execute(command: list[str]) -> None:
    """Replace this process by the command."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _die_with(guard: int) -> None:
    """Let the kernel kill this process when the guard dies. Linux only."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, ImportError, OSError):
        return
    if os.getppid() != guard:
        os._exit(127)


def _kill_group_after(lifeline: int) -> None:
    while os.read(lifeline, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
