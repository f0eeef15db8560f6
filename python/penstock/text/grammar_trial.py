"""Child processes in which grammars are tried, so that a hostile one hurts nobody.

It knows nothing of schemas and requests: a serialized grammar goes in, an error or none comes out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import subprocess
import sys
import threading
import time
import weakref
from typing import Final

import msgspec

from penstock.models.grammar_child import LENGTH, Taught, frame
from penstock.models.vocabulary import Vocabulary

log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S: Final = 4.0
START_TIMEOUT_S: Final = 60.0
"""The first answer of a child may wait for its tokenizer."""
MAX_CHILDREN: Final = 2
"""While one is held up by a hostile grammar, another serves."""


class TrialFailed(Exception):
    """A grammar took too much: time, memory or stack."""


class GrammarTrial:
    """Tries grammars in up to `MAX_CHILDREN` processes, which live on for further ones. Safe to use
    from several threads; a call blocks until its grammar is tried."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._taught = Taught(vocabulary, vocab_size)
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
        idle = self._idle.get()
        try:
            child = self._taken(idle)
        except BaseException:
            self._idle.put(None)
            raise
        try:
            error = child.error_of(grammar, COMPILE_TIMEOUT_S if timeout_s is None else timeout_s)
        except BaseException:
            self._put_back(child, usable=False)
            raise
        self._put_back(child, usable=True)
        return error

    def close(self) -> None:
        """End the children, with what they try. May be called again."""
        with self._lock:
            self._closed = True
            for child in self._busy:
                child.interrupt()
            _end(self._idle)

    def _taken(self, child: _Child | None) -> _Child:
        """The child, or a new one, which `close` knows of from here on. Raises TrialFailed."""
        child = child or _Child(self._taught)
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
    for _ in range(MAX_CHILDREN):
        with contextlib.suppress(queue.Empty):
            child = idle.get_nowait()
            if child is not None:
                child.kill()
            idle.put(None)


class _Child:
    def __init__(self, taught: Taught) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "penstock.models.grammar_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent
            bufsize=0,
        )
        self._answered = False
        self._send(frame(taught))

    def error_of(self, grammar: str, timeout_s: float) -> str | None:
        self._send(frame(grammar))
        deadline_s = time.monotonic() + timeout_s + (0 if self._answered else START_TIMEOUT_S)
        (size,) = LENGTH.unpack(self._receive(LENGTH.size, deadline_s))
        answer = msgspec.msgpack.decode(self._receive(size, deadline_s), type=str)
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
        except BrokenPipeError as error:
            raise TrialFailed("the process that tries grammars ended") from error

    def _receive(self, size: int, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while len(data) < size:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise TrialFailed("it takes too long to compile")
                part = os.read(self._process.stdout.fileno(), size - len(data))
                if not part:
                    raise TrialFailed("it takes too much memory to compile")
                data += part
        return data
