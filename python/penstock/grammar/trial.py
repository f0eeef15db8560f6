"""Tries grammars in child processes, so that a hostile grammar cannot harm the server.

This module does not depend on schemas or requests: it takes a serialized grammar and returns an
error or None.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Final

import msgspec

from penstock.grammar.trial_process import LENGTH, TrialSetup, encode_frame
from penstock.grammar.vocabulary import Vocabulary

log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S: Final = 4.0
"""CPU time limit of a trial. Wall-clock time would depend on the load of the machine."""
WALL_TIME_FACTOR: Final = 4
"""Wall-clock time limit of a trial, as a multiple of the CPU time limit."""
START_TIMEOUT_S: Final = 60.0
"""Extra time for the first trial of a child process, which must build its tokenizer first."""
MAX_CHILDREN: Final = 2
"""Maximum number of child processes: two, so that one hostile grammar does not block all others."""
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
KILLED: Final = tuple(-n for n in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Exit codes of a child that was killed from outside. The child's own limits end it with other
exit codes."""


class TrialFailed(Exception):
    """A grammar exceeded a limit of time, memory or stack, or the model is closed."""


class TrialUnavailable(TrialFailed):
    """The machine was too busy to try the grammar in time; the grammar may be valid."""


class _Killed(Exception):
    """A child process was killed, perhaps before it received a grammar."""


class GrammarTrial:
    """Tries grammars in up to `MAX_CHILDREN` child processes, which are reused. Thread-safe. Calls
    block until the trial is done."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._setup = TrialSetup(vocabulary, vocab_size)
        self._idle: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(MAX_CHILDREN):
            self._idle.put(None)
        self._busy: set[_Child] = set()
        self._closed = False
        self._lock = threading.Lock()  # guards `_busy` and `_closed`
        # A child without a reference keeps running: `subprocess` keeps its pipe open.
        weakref.finalize(self, _end, self._idle)

    def error_of(self, grammar: str, timeout_s: float | None = None) -> str | None:
        """Return the error of a grammar, or None if it is valid. `timeout_s`: CPU time limit.

        Raises TrialFailed, also after `close`, and TrialUnavailable.
        """
        timeout_s = COMPILE_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            return self._try(grammar, timeout_s)
        except _Killed:
            log.warning("a grammar trial process was killed; trying the grammar once more")
        try:
            return self._try(grammar, timeout_s)
        except _Killed:
            raise TrialFailed("it takes too much memory to compile") from None

    def close(self) -> None:
        """Kill the child processes, also those that are trying a grammar. May be called again."""
        with self._lock:
            self._closed = True
            for child in self._busy:
                child.interrupt()
            _end(self._idle)

    def _try(self, grammar: str, timeout_s: float) -> str | None:
        """Try a grammar once in an idle child process. Returns its error, or None if it is valid.
        Raises TrialFailed, _Killed."""
        idle = self._idle.get()
        try:
            child = self._acquire(idle)
        except BaseException:
            self._idle.put(None)
            raise
        try:
            error = child.error_of(grammar, timeout_s)
        except BaseException:
            self._put_back(child, usable=False)
            raise
        self._put_back(child, usable=True)
        return error

    def _acquire(self, child: _Child | None) -> _Child:
        """Register `child`, or a new child if it is None, as busy and return it. Raises TrialFailed
        after `close`."""
        child = child or _Child(self._setup)
        with self._lock:
            if not self._closed:
                self._busy.add(child)
                return child
        child.kill()
        raise TrialFailed("the model is closed")

    def _put_back(self, child: _Child, *, usable: bool) -> None:
        with self._lock:
            self._busy.discard(child)
            usable = usable and not self._closed
            if not usable:
                child.kill()
            self._idle.put(child if usable else None)


def _end(idle: queue.LifoQueue[_Child | None]) -> None:
    idle_children: list[_Child | None] = []
    with contextlib.suppress(queue.Empty):
        while True:
            idle_children.append(idle.get_nowait())
    for child in idle_children:
        if child is not None:
            child.kill()
        idle.put(None)


class _Child:
    def __init__(self, setup: TrialSetup) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.grammar.trial_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must reach the parent only
            bufsize=0,
        )
        self._setup = setup
        self._setup_sent = False
        self._answered = False

    def error_of(self, grammar: str, timeout_s: float) -> str | None:
        """Send a grammar to the process. Returns its error, or None if it is valid. Raises
        TrialFailed, _Killed."""
        if not self._setup_sent:
            self._send(encode_frame(self._setup))
            self._setup_sent = True
        self._send(encode_frame(grammar))
        start_s = 0 if self._answered else START_TIMEOUT_S
        time_left = _TimeLeft(self._process.pid, timeout_s, start_s)
        (size,) = LENGTH.unpack(self._receive(LENGTH.size, time_left))
        answer = msgspec.msgpack.decode(self._receive(size, time_left), type=str)
        self._answered = True
        return answer or None

    def interrupt(self) -> None:
        """Kill the process. The thread that waits for its answer cleans up."""
        self._process.kill()

    def kill(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except BrokenPipeError:
            raise self._exit_error() from None

    def _receive(self, size: int, time_left: _TimeLeft) -> bytes:
        """Read `size` bytes from the process. Raises TrialFailed, _Killed."""
        assert self._process.stdout is not None
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(time_left()):
                    continue
                part = os.read(self._process.stdout.fileno(), size - len(data))
                if not part:
                    raise self._exit_error()
                data += part
        return data

    def _exit_error(self) -> Exception:
        """Return the exception for a child process that has closed its pipes."""
        if self._process.wait() in KILLED:
            return _Killed()
        return TrialFailed("it takes too much memory to compile")


class _TimeLeft:
    """Computes the time that is left for one trial, in CPU time and in wall-clock time."""

    def __init__(self, pid: int, timeout_s: float, start_s: float) -> None:
        self._pid = pid
        self._last_cpu_s = _cpu_s(pid) + timeout_s + start_s
        self._deadline_s = time.monotonic() + WALL_TIME_FACTOR * timeout_s + start_s

    def __call__(self) -> float:
        """Return the seconds after which to check again.

        Raises TrialFailed if the CPU time is over, TrialUnavailable if the wall-clock time is over.
        """
        cpu_s = self._last_cpu_s - _cpu_s(self._pid)
        if cpu_s <= 0:
            raise TrialFailed("it takes too long to compile")
        clock_s = self._deadline_s - time.monotonic()
        if clock_s <= 0:
            raise TrialUnavailable("it could not be compiled in time")
        return max(TICK_S, min(cpu_s, clock_s))


def _cpu_s(pid: int) -> float:
    """Return the CPU time in seconds that a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * TICK_S
