"""Runs a generator over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from penstock.base.errors import (
    ContextLengthExceeded,
    EngineFault,
    InvalidRequest,
    Overloaded,
    ServiceError,
    Unavailable,
)
from penstock.dialog import Event, GenerateRequest, Message, RunFailed, Sampling, Text
from penstock.dialog.fold import Answer, fold
from penstock.engine.types import EngineInfo
from penstock.generation import Generator
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine

TOKENIZER = tiny_tokenizer()
HI = (Message("user", (Text("hi"),)),)


def ids(text: str) -> list[int]:
    return list(text.encode())


def info(max_model_len: int) -> EngineInfo:
    return EngineInfo("scripted", max_model_len, 264, 8, 128, 16, 0, "fp")


def generator(engine: ScriptedEngine, defaults: Sampling | None = None) -> Generator:
    return Generator(engine, TOKENIZER, tiny_template(), defaults)


async def run(generator: Generator, request: GenerateRequest) -> AsyncGenerator[Event, None]:
    """Yield the events of a run. A RunFailed is raised as the error that it was made of."""
    async with aclosing(generator.run(request)) as events:
        async for event in events:
            if isinstance(event, RunFailed):
                raise _error(event)
            yield event


def _error(event: RunFailed) -> ServiceError:
    kinds = (ContextLengthExceeded, InvalidRequest, Overloaded, EngineFault, Unavailable)
    by_code = {kind.code: kind for kind in kinds}
    by_status = {kind.status: kind for kind in kinds}
    kind = by_code.get(event.code) or by_status[event.status]
    return kind(event.message, field=event.field, code=event.code)


async def events_of(engine: ScriptedEngine, **fields: Any) -> list[Event]:
    fields.setdefault("messages", HI if "prompt" not in fields else None)
    return [event async for event in run(generator(engine), GenerateRequest(**fields))]


async def answer_of(engine: ScriptedEngine, **fields: Any) -> Answer:
    return fold(await events_of(engine, **fields))


def text(answer: Answer, choice: int = 0) -> str:
    (part,) = answer.choices[choice].parts
    assert isinstance(part, Text)
    return part.text
