"""Child processes in which grammars are tried, so that a hostile one hurts nobody.

It knows nothing of schemas and requests: a serialized grammar goes in, an error or none comes out.
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

from penstock.grammar.trial_process import LENGTH, Taught, frame
from penstock.grammar.vocabulary import Vocabulary

log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S: Final = 4.0
"""Of a processor: how long that takes by the clock, other load decides."""
PATIENCE: Final = 4
"""So many times as long by the clock a trial may take."""
START_TIMEOUT_S: Final = 60.0
"""The first answer of a child may wait for its tokenizer."""
MAX_CHILDREN: Final = 2
"""While one is held up by a hostile grammar, another serves."""
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
KILLED: Final = tuple(-n for n in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""How a child ends that somebody else ended: its own limits end it otherwise."""


class TrialFailed(Exception):
    """A grammar took too much: time, memory or stack."""


class TrialUnavailable(TrialFailed):
    """The grammar may be a good one: this machine did not let the child try it in time."""


class _Killed(Exception):
    """A child was killed, perhaps before it had anything to try."""


class GrammarTrial:
    """Tries grammars in up to `MAX_CHILDREN` processes, which live on for further ones. Safe to use
    from several threads; a call blocks until its grammar is tried."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._tokenizer_setup = Taught(vocabulary, vocab_size)
        self._idle: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(MAX_CHILDREN):
            self._idle.put(None)
        self._busy: set[_Child] = set()
        self._closed = False
        self._lock = threading.Lock()  # of what stands above
        # A child that is forgotten goes on: `subprocess` keeps it, and its pipe open.
        weakref.finalize(self, _end, self._idle)

    def error_of(self, grammar: str, timeout_s: float | None = None) -> str | None:
        """What is wrong with a grammar, None if nothing is. Raises TrialFailed, once closed too."""
        timeout_s = COMPILE_TIMEOUT_S if timeout_s is None else timeout_s
        try:
            return self._tried(grammar, timeout_s)
        except _Killed:
            log.warning("a process that tries grammars was killed")
        try:
            return self._tried(grammar, timeout_s)
        except _Killed:
            raise TrialFailed("it takes too much memory to compile") from None

    def close(self) -> None:
        """End the children, with what they try. May be called again."""
        with self._lock:
            self._closed = True
            for child in self._busy:
                child.interrupt()
            _end(self._idle)

    def _tried(self, grammar: str, timeout_s: float) -> str | None:
        """`error_of` in one child. Raises _Killed."""
        idle = self._idle.get()
        try:
            child = self._taken(idle)
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

    def _taken(self, child: _Child | None) -> _Child:
        """The child, or a new one, which `close` knows of from here on. Raises TrialFailed."""
        child = child or _Child(self._tokenizer_setup)
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
    taken: list[_Child | None] = []
    with contextlib.suppress(queue.Empty):
        while True:
            taken.append(idle.get_nowait())
    for child in taken:
        if child is not None:
            child.kill()
        idle.put(None)


class _Child:
    def __init__(self, tokenizer_setup: Taught) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.grammar.trial_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent
            bufsize=0,
        )
        self._tokenizer_setup = tokenizer_setup
        self._is_taught = False
        self._answered = False

    def error_of(self, grammar: str, timeout_s: float) -> str | None:
        """Raises TrialFailed, _Killed."""
        if not self._is_taught:
            self._send(frame(self._tokenizer_setup))
            self._is_taught = True
        self._send(frame(grammar))
        start_s = 0 if self._answered else START_TIMEOUT_S
        time_left = _TimeLeft(self._process.pid, timeout_s, start_s)
        (size,) = LENGTH.unpack(self._receive(LENGTH.size, time_left))
        answer = msgspec.msgpack.decode(self._receive(size, time_left), type=str)
        self._answered = True
        return answer or None

    def interrupt(self) -> None:
        """End it under the thread that uses it, which sees to the rest."""
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
            raise self._end() from None

    def _receive(self, size: int, time_left: _TimeLeft) -> bytes:
        """Raises what `_TimeLeft` raises, and what `_end` makes."""
        assert self._process.stdout is not None
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(time_left()):
                    continue
                part = os.read(self._process.stdout.fileno(), size - len(data))
                if not part:
                    raise self._end()
                data += part
        return data

    def _end(self) -> Exception:
        """How it ended, which has closed its pipes."""
        if self._process.wait() in KILLED:
            return _Killed()
        return TrialFailed("it takes too much memory to compile")


class _TimeLeft:
    """How long a trial may still be waited for."""

    def __init__(self, pid: int, timeout_s: float, start_s: float) -> None:
        self._pid = pid
        self._last_cpu_s = _cpu_s(pid) + timeout_s + start_s
        self._deadline_s = time.monotonic() + PATIENCE * timeout_s + start_s

    def __call__(self) -> float:
        """Seconds, after which to ask again. Raises TrialFailed, TrialUnavailable."""
        cpu_s = self._last_cpu_s - _cpu_s(self._pid)
        if cpu_s <= 0:
            raise TrialFailed("it takes too long to compile")
        clock_s = self._deadline_s - time.monotonic()
        if clock_s <= 0:
            raise TrialUnavailable("it could not be compiled in time")
        return max(TICK_S, min(cpu_s, clock_s))


def _cpu_s(pid: int) -> float:
    """The processor time that a process has taken so far."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * TICK_S
