"""A model that writes a fixed text, as far as grammars allow it, behind the real engine.

    async with guided_text_server('{"a": 1}') as server: ...

Its tokens are the bytes of the text, then the end token. A token that the mask does not allow is
skipped, together with those up to the next allowed one. If none is allowed, some allowed token is
sampled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np

from penstock.agent import AgentLoop
from penstock.config import EngineSettings, ServerSettings
from penstock.engine.core import EngineCore
from penstock.engine.local import LocalEngine
from penstock.generation import Generator
from penstock.runtime.protocol import Masks, RuntimeInfo
from penstock.scheduler.types import SampledToken, StepPlan, StepResult
from penstock.text import Tokenizer
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_template, tiny_tokenizer
from tests.support.servers.http_server import MODEL, Serving, serving

_CONTEXT: Final = 4096
_BLOCK: Final = 16
_LIKELY: Final = (*b'"}])>0a ', IM_END)
"""The token sampled if the rest of the text has no allowed one."""


class GuidedTextRuntime:
    """Implements `penstock.runtime.protocol.Runtime` for rows that all write the same text."""

    adapters = None
    media = None
    live_weights = None
    report = ""

    def __init__(self, tokens: Iterable[int], vocab_size: int) -> None:
        self._tokens = [*tokens, IM_END]
        self._vocab_size = vocab_size
        self._at: dict[int, int] = {}
        self._done: list[StepResult] = []
        self.info = RuntimeInfo(MODEL, "fp", vocab_size, _CONTEXT, 1024, _BLOCK, 0)

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        for admission in plan.admissions:
            self._at[admission.row] = 0
            self._pass(admission.row, admission.token_ids[admission.prompt_tokens :])
        for forced in plan.forced:
            self._pass(forced.row, forced.token_ids)
        rows = [chunk.row for chunk in plan.chunks if chunk.samples]
        allowed: list[Any] = [None] * len(rows)
        if masks is not None and rows:
            words, mask_of = masks.wait()
            bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            allowed = [bits[index] if index >= 0 else None for index in mask_of]
        sampled = [
            SampledToken(row, self._draw(row, mask))
            for row, mask in zip(rows, allowed, strict=True)
        ]
        self._done.append(StepResult(plan.step, tuple(sampled)))

    def collect(self) -> StepResult:
        return self._done.pop(0)

    def prepare(self) -> bool:
        return False

    def close(self) -> None:
        """No-op: there is nothing to release."""

    def _draw(self, row: int, allowed: Any) -> int:
        rest = self._tokens[self._at[row] :] or [IM_END]
        wanted = (*rest, *_LIKELY, *range(self._vocab_size))
        token = next(t for t in wanted if allowed is None or allowed[t])
        self._pass(row, (token,))
        return token

    def _pass(self, row: int, token_ids: Iterable[int]) -> None:
        """Advance the row past these tokens."""
        for token in token_ids:
            rest = self._tokens[self._at[row] :]
            if token in rest:
                self._at[row] += rest.index(token) + 1


@asynccontextmanager
async def guided_text_server(
    text: str | Iterable[int],
    syntax: str = "hermes",
    *,
    tokenizer: Tokenizer | None = None,
    settings: ServerSettings = ServerSettings(),  # noqa: B008
) -> AsyncIterator[Serving]:
    """Run a server over a model that writes `text`, with tool calls in the format of the parser
    `syntax`."""
    tokenizer = tokenizer or tiny_tokenizer()
    runtime = GuidedTextRuntime(
        text.encode() if isinstance(text, str) else text, tokenizer.vocab_size
    )
    limits = EngineSettings(
        model=MODEL, max_model_len=_CONTEXT, max_num_seqs=4, max_num_batched_tokens=512,
        block_size=_BLOCK,
        threads=1,
    )  # fmt: skip
    engine = LocalEngine(EngineCore.for_runtime(runtime, limits))
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES[syntax])
    generator = Generator(engine, tokenizer, tiny_template(), syntax=answer_syntax)
    try:
        async with serving(models={MODEL: AgentLoop(generator)}, settings=settings) as server:
            yield server
    finally:
        generator.close()
        await engine.close()
