"""Suspends processes."""

from __future__ import annotations

import os
import signal


def stop_process(pid: int) -> None:
    """Stop a child until it gets SIGCONT; on return none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
