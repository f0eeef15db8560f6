"""Runs of a generator over a scripted engine."""

from __future__ import annotations

from typing import Any

from penstock.dialog import (
    Event,
    GenerateRequest,
    Message,
    Sampling,
    Text,
)
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


async def events_of(engine: ScriptedEngine, **fields: Any) -> list[Event]:
    fields.setdefault("messages", HI if "prompt" not in fields else None)
    return [event async for event in generator(engine).run(GenerateRequest(**fields))]


async def answer_of(engine: ScriptedEngine, **fields: Any) -> Answer:
    return fold(await events_of(engine, **fields))


def text(answer: Answer, choice: int = 0) -> str:
    (part,) = answer.choices[choice].parts
    assert isinstance(part, Text)
    return part.text
