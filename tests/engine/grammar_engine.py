"""An EngineCore over a small model with a small vocabulary, for requests with a grammar."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_runtime_on_cpu import start_gpu_runtime_on_cpu
from msgspec.structs import replace

from penstock.config import EngineSettings
from penstock.dialog import Constraint, Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.grammar.compiler import serialize
from penstock.grammar.types import Grammar
from penstock.grammar.vocabulary import Vocabulary
from penstock.models.hub.sources import files_at
from penstock.runtime import CpuRuntime, start_runtime
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.text import Tokenizer
from penstock.text.grammar_vocabulary import vocabulary_of
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_tokenizer

VOCAB = 269  # larger than the tokenizer's, and not a multiple of 32
ROWS = 8
BLOCK = 16


def _settings(folder: Path) -> EngineSettings:
    return EngineSettings(
        model=str(folder),
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=CONTEXT,
        block_size=BLOCK,
        threads=2,
    )


def start_model(folder: Path, **options: Any) -> CpuRuntime:
    write_small_llama(folder, vocab=VOCAB)
    settings = replace(_settings(folder), **options)
    return start_runtime(files_at(folder, "small-llama"), settings)


def start_gpu_model_on_cpu(folder: Path, **options: Any) -> GpuRuntime:
    """Start the same model on the GPU runtime, with CPU tensors."""
    write_small_llama(folder, vocab=VOCAB)
    return start_gpu_runtime_on_cpu(
        folder, replace(_settings(folder), dtype="f32", kv_cache_memory_mb=4, **options)
    )


def core_of(
    runtime: CpuRuntime | GpuRuntime, num_blocks: int | None = None, **options: Any
) -> EngineCore:
    """Return an engine over `runtime` that may use `num_blocks` KV blocks. `options` are engine
    settings."""
    if num_blocks is not None:
        assert isinstance(runtime, CpuRuntime)
        fewer = replace(runtime.info, cache_blocks=num_blocks)
        runtime = CpuRuntime(runtime._rows, runtime._backend, fewer, "", runtime._drafter)
    return EngineCore.for_runtime(
        runtime, replace(_settings(Path(runtime.info.model_id)), **options)
    )


def tokenizer_and_vocabulary() -> tuple[Tokenizer, Vocabulary]:
    tokenizer = tiny_tokenizer()
    return tokenizer, vocabulary_of(tokenizer)


def schema(value: object) -> Grammar:
    return Grammar(serialize(Constraint("json_schema", json.dumps(value))))


def regex(value: str) -> Grammar:
    return Grammar(serialize(Constraint("regex", value)))


def lark(value: str) -> Grammar:
    return Grammar(serialize(Constraint("lark", value)))


def request(
    id: str,
    constraint: Grammar | None,
    *,
    seed: int = 0,
    max_tokens: int = 100,
    prompt: tuple[int, ...] = (72, 105, 10),
    top_logprobs: int | None = None,
    stop_token_ids: frozenset[int] = frozenset({IM_END}),
) -> TokenRequest:
    return TokenRequest(
        id=id,
        token_ids=prompt,
        sampling=Sampling(temperature=1.0),
        seed=seed,
        max_tokens=max_tokens,
        stop_token_ids=stop_token_ids,
        top_logprobs=top_logprobs,
        constraint=constraint,
    )


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    chunks: int = 0


def compile_all(core: EngineCore, requests: list[TokenRequest]) -> None:
    """Compile the grammars of `requests`, so that all of them join the first step of a later `run`
    even on a busy machine."""
    run(core, [replace(one, max_tokens=1) for one in requests if one.constraint is not None])


def run(core: EngineCore, requests: list[TokenRequest]) -> dict[str, Answer]:
    """Submit all requests at once and step until all are finished."""
    answers = {request.id: Answer() for request in requests}
    ready = threading.Event()
    core.call_when_ready(ready.set)
    for one in requests:
        core.submit(one)
    while any(answer.finish is None for answer in answers.values()):
        if not core.has_work:
            assert ready.wait(30), "a grammar is never ready"
            ready.clear()
        for chunk in core.step():
            answer = answers[chunk.id]
            assert answer.finish is None, "a chunk after the last"
            answer.tokens += [token.token_id for token in chunk.tokens]
            answer.finish, answer.error = chunk.finish, chunk.error
            answer.chunks += 1
    return answers
