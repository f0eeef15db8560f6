"""Makes a request's constraint ready for the engine: compiled off the event loop, the engine
taught the vocabulary."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.dialog import Constraint
from penstock.engine.protocol import Engine
from penstock.engine.types import Grammar
from penstock.text import Tokenizer
from penstock.text.grammar import GrammarCompiler, vocabulary_of

_THREADS: Final = 2


class Constraints:
    """Of one model. Nothing is built before the first constraint comes; two requests that come
    first together are both fine. Called from the engine's asyncio loop."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._compiler: asyncio.Task[GrammarCompiler] | None = None
        self._pool: ThreadPoolExecutor | None = None

    async def prepare(self, constraint: Constraint) -> Grammar:
        """The grammar to send. Raises InvalidRequest naming the field and the place in it."""
        if self._compiler is None:
            self._compiler = asyncio.create_task(self._start())
        compiler = await asyncio.shield(self._compiler)
        known = compiler.known(constraint)
        if known is None:
            loop = asyncio.get_running_loop()
            known = await loop.run_in_executor(self._pool, compiler.compile, constraint)
        return Grammar(known)

    async def _start(self) -> GrammarCompiler:
        vocabulary = await asyncio.to_thread(vocabulary_of, self._tokenizer)
        self._engine.teach(vocabulary)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-constraints")
        return GrammarCompiler(vocabulary, self._engine.info.vocab_size)
