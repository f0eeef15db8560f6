"""Compiles a request's constraint in a thread, and sends the vocabulary to the engine."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Final

from penstock.dialog import Constraint
from penstock.engine.protocol import Engine
from penstock.grammar.compiler import GrammarCompiler
from penstock.grammar.types import Grammar
from penstock.text import Tokenizer
from penstock.text.grammar_vocabulary import vocabulary_of

_AT_ONCE: Final = 2


class ConstraintCompiler:
    """Compiles constraints for one model. To be called from the engine's asyncio loop.

    The first constraint starts the `GrammarCompiler`, which all requests share.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._compiler: asyncio.Task[GrammarCompiler] | None = None
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def prepare(self, constraint: Constraint) -> Grammar:
        """Return the grammar of a constraint, to be sent to the engine.

        Raises InvalidRequest that names the request field and the fault in it, Unavailable if the
        machine is too busy to try the grammar.
        """
        compiler = await asyncio.shield(self._starting())
        known = compiler.cached(constraint)
        if known is None:
            await self._free.acquire()  # nothing is to be undone if the caller is cancelled here
            try:
                compiling = asyncio.wrap_future(_compiled(compiler, constraint))
            except BaseException:  # e.g. no thread is left
                self._free.release()
                raise
            compiling.add_done_callback(lambda _: self._free.release())
            known = await asyncio.shield(compiling)
        return Grammar(known)

    def close(self) -> None:
        """Stop the child processes. May be called again."""
        starting = self._compiler
        if starting is None:
            return
        starting.cancel()  # harmless if it has started
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            starting.result().close()

    def _starting(self) -> asyncio.Task[GrammarCompiler]:
        """Return the task that starts the compiler. If the last task failed, a new task is created,
        but not after `close`."""
        task = self._compiler
        if task is None or (task.done() and not task.cancelled() and task.exception()):
            task = self._compiler = asyncio.create_task(self._start())
        return task

    async def _start(self) -> GrammarCompiler:
        vocabulary = await asyncio.to_thread(vocabulary_of, self._tokenizer)
        self._engine.set_tokenizer(vocabulary)
        return GrammarCompiler(vocabulary, self._engine.info.vocab_size)


def _compiled(compiler: GrammarCompiler, constraint: Constraint) -> Future[str]:
    """Run `GrammarCompiler.compile` in a daemon thread, which does not delay the exit of the
    process. Returns a future of the serialized grammar."""
    done: Future[str] = Future()

    def work() -> None:
        try:
            done.set_result(compiler.compile(constraint))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="penstock-constraints", daemon=True).start()
    return done
