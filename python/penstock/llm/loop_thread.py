"""Runs an asyncio loop in a thread, so that callers need no loop."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from penstock.base.errors import Unavailable
from penstock.llm.embedded_model import EmbeddedModel

_T = TypeVar("_T")
log = logging.getLogger(__name__)


class LoopThread:
    """A background thread with an asyncio loop, and the model that runs in the loop. The thread
    ends before the interpreter does: native code must not return into an interpreter that has
    ended."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._model: EmbeddedModel | None = None
        self._pid = os.getpid()
        self._submitting = threading.RLock()  # no submission after `_end`
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="penstock-llm", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    async def open(self, start: Callable[[], Awaitable[EmbeddedModel]]) -> EmbeddedModel:
        """Start a model with `start`, keep it, and return it. `stop` and `close` close the model.
        Must run in this loop (see `submit`)."""
        self._model = await start()
        return self._model

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a coroutine in the loop and return its future. Raises Unavailable after `stop`, and
        in a forked process, which does not have this thread."""
        if not self._is_here():
            work.close()
            raise Unavailable("this LLM belongs to another process; open one here")
        with self._submitting:
            if self._stopping:
                work.close()
                raise Unavailable("this LLM is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop and return its result. Interrupting the caller cancels the
        coroutine."""
        future = self.submit(work)
        try:
            return self.result(future)
        finally:
            future.cancel()

    async def wait_async(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in this object's loop and await its result in the caller's loop.
        Cancelling the caller cancels the coroutine."""
        future = self.submit(work)
        try:
            await asyncio.wait([asyncio.wrap_future(future)])
            return self.result(future)
        finally:
            future.cancel()

    def result(self, future: Future[_T]) -> _T:
        """Wait for a future and return its result. Raises Unavailable if the future was cancelled,
        as `close` does."""
        try:
            return future.result()
        except CancelledError:
            raise Unavailable("this LLM is closed") from None

    def stop(self) -> None:
        """Start to cancel all work, close the model and end the thread. Does not wait, since the
        garbage collector may call this in any thread. May be called again."""
        if not self._is_here():
            return
        with self._submitting:
            if not self._stopping:
                self._stopping = True
                asyncio.run_coroutine_threadsafe(self._end(), self._loop)

    def close(self) -> None:
        """Cancel all work, close the model, and wait until the thread has ended. May be called
        again."""
        self.stop()
        if self._is_here() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _is_here(self) -> bool:
        """Whether the thread runs in this process. Must be checked before the lock is acquired: in
        a forked process, the lock may be held forever."""
        return os.getpid() == self._pid

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()
        atexit.unregister(self.close)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if self._model is not None:
                await self._model.runners.close()
                await self._model.close()
        except Exception:  # no caller waits for this coroutine
            log.exception("the model was not closed")
        finally:
            self._loop.stop()
