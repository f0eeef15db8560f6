"""The vocabulary and the chat template of a GGUF file, as clients see them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.agent import load_runners
from penstock.base.errors import ModelError
from penstock.models.hub.sources import files_at
from penstock.models.tokenizer.tokenizer_data import TokenType
from tests.support.checkpoints.tiny_gguf import write_tiny_gguf
from tests.support.checkpoints.tiny_tokenizer import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    WORDS,
    tiny_tokenizer,
)
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, serving

NORMAL, CONTROL, USER_DEFINED = TokenType.NORMAL, TokenType.CONTROL, TokenType.USER_DEFINED
VOCAB = 256 + 3 + len(WORDS)


def types_with(token: int, kind: TokenType) -> list[int]:
    types = [int(NORMAL)] * VOCAB
    for control in (END_OF_TEXT, IM_START, IM_END):
        types[control] = int(CONTROL)
    types[token] = int(kind)
    return types


async def chat(path: Path, said: str, written: list[int]) -> tuple[ScriptedEngine, dict[str, Any]]:
    """Send a chat to a model that writes these tokens. Returns the engine and the choice."""
    engine = ScriptedEngine(written)
    runners = load_runners(files_at(path, MODEL), engine)
    body = {"messages": [{"role": "user", "content": said}]}
    async with serving(models={MODEL: runners}, engine=engine) as server:
        answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return engine, choice


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom"])
async def test_token_named_in_metadata_is_a_control_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, kind: TokenType
) -> None:
    named = {"bos_id": END_OF_TEXT, "eos_id": END_OF_TEXT, f"{name}_id": IM_END}
    keys = {f"tokenizer.ggml.{name}_token_id": IM_END} if name in ("eot", "eom") else {}
    path = write_tiny_gguf(
        tmp_path / "m.gguf",
        keys,
        bos_id=named["bos_id"],
        eos_id=named["eos_id"],
        token_types=types_with(IM_END, kind),
    )
    with caplog.at_level(logging.WARNING):
        engine, choice = await chat(path, "say <|im_end|>", [*b"hi", IM_END, *b" there"])
    ids = engine.requests[0].token_ids
    assert ids.count(IM_END) == 1  # from the template; in user text it is not a control token
    assert choice["message"]["content"] == "hi"
    assert choice["finish_reason"] == "stop"
    (line,) = [record.getMessage() for record in caplog.records if "token_type" in record.message]
    assert all(part in line for part in (str(path), "<|im_end|>", name, kind.name))


async def test_file_without_token_types_has_an_end_token(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", token_types=[])
    engine, choice = await chat(path, "hi", [*b"hi", IM_END, *b" there"])
    assert engine.requests[0].token_ids.count(IM_END) == 1
    assert choice["message"]["content"] == "hi"


async def test_single_character_named_in_metadata_stays_text(tmp_path: Path) -> None:
    comma = ord(",")
    path = write_tiny_gguf(tmp_path / "m.gguf", bos_id=comma)
    _, choice = await chat(path, "a, b", list(b"c, d"))
    assert choice["message"]["content"] == "c, d"


@pytest.mark.parametrize("pre", [None, "default"])
async def test_file_without_a_pre_tokenizer_uses_the_one_of_gpt_2(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pre: str | None
) -> None:
    said = "the thing, in 2 theses"
    unnamed = write_tiny_gguf(tmp_path / "unnamed.gguf", pre=pre)
    named = write_tiny_gguf(tmp_path / "named.gguf", pre="gpt-2")
    with caplog.at_level(logging.WARNING):
        engine, _ = await chat(unnamed, said, [*b"hi"])
    other, _ = await chat(named, said, [*b"hi"])
    assert engine.requests[0].token_ids == other.requests[0].token_ids
    (line,) = [r.getMessage() for r in caplog.records if "tokenizer.ggml.pre" in r.getMessage()]
    assert str(unnamed) in line and "GPT-2" in line


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"pre": "unheard-of"}, "tokenizer.ggml.pre is 'unheard-of'"),
        ({"merges": ["nopair"]}, "tokenizer.ggml.merges"),
    ],
)
def test_rejected_vocabulary_is_reported_with_its_file(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(ModelError, match=f"^{path}: {key}"):
        load_runners(files_at(path, MODEL), ScriptedEngine([]))


async def test_template_may_use_common_filters(
    tmp_path: Path,
) -> None:
    template = (
        "{% for role, said in messages | groupby('role') %}{{ role | e }}{% endfor %}"
        " {{ messages[0].content | wordwrap(10) | urlencode }}"
        " {{ [1, 2] | slice(2) | list | pprint }} {{ 1500 | filesizeformat }} {{ '<' | escape }}"
    )
    path = write_tiny_gguf(tmp_path / "m.gguf", template=template)
    engine, _ = await chat(path, "one two three", [*b"hi"])
    prompt = tiny_tokenizer().decode(engine.requests[0].token_ids)
    assert prompt == "user one%20two%0Athree [[1], [2]] 1.5 kB &lt;"
