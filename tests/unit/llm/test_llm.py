from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.agent import AgentLoop, Runners
from penstock.base.errors import InvalidRequest, ModelError, ServiceError, Unavailable
from penstock.config import EngineSettings, SettingsError
from penstock.dialog import (
    Constraint,
    Event,
    FunctionTool,
    GenerateRequest,
    Message,
    RunEnded,
    RunStarted,
    Sampling,
    Text,
    TextDelta,
    ToolCall,
    ToolPolicy,
)
from penstock.dialog.fold import Answer, FailedRun
from penstock.generation import Generator
from penstock.llm import LLM, EmbeddedModel
from penstock.llm.embedded_model import start_embedded_model
from penstock.text.tool_parsers import detect_answer_syntax
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine

HI = [{"role": "user", "content": "hi"}]


class Opened:
    """An LLM over a scripted engine, and what became of it."""

    def __init__(self, script: Any) -> None:
        self.engine = ScriptedEngine(script)
        self.closed = threading.Event()
        self.llm = LLM.from_embedded_model(self._start)

    async def _start(self) -> EmbeddedModel:
        channels = detect_answer_syntax(None, ())
        generator = Generator(self.engine, tiny_tokenizer(), tiny_template(), syntax=channels)
        return EmbeddedModel(Runners(AgentLoop(generator)), 2, self._close)

    async def _close(self) -> None:
        self.closed.set()


def ids(text: str) -> list[int]:
    return list(text.encode())


def echo(request: Any) -> list[int]:
    return [i for i in request.token_ids if i < 256]


@pytest.fixture
def echoing() -> Iterator[Opened]:
    opened = Opened(echo)
    yield opened
    opened.llm.close()


def text(answer: Answer, choice: int = 0) -> str:
    (part,) = answer.choices[choice].parts
    assert isinstance(part, Text)
    return part.text


def shown(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_answers_come_in_the_order_of_their_prompts(echoing: Opened) -> None:
    prompts = [f"q{number}" for number in range(50)]
    assert [text(answer) for answer in echoing.llm.generate(prompts)] == prompts


def test_one_prompt_may_be_a_text_or_token_ids(echoing: Opened) -> None:
    assert text(echoing.llm.generate("xyz")[0]) == "xyz"
    assert text(echoing.llm.generate([0x61, 0x62])[0]) == "ab"
    assert [text(a) for a in echoing.llm.generate(["x", (0x61,)])] == ["x", "a"]
    assert echoing.llm.generate([]) == []


def test_options_reach_the_engine(echoing: Opened) -> None:
    echoing.llm.generate(
        "abcd",
        sampling=Sampling(temperature=0, seed=5),
        max_tokens=3,
        min_tokens=2,
        n=2,
        stop="zz",
        stop_token_ids=[0x7A],
        top_logprobs=1,
    )
    for request in echoing.engine.requests:
        assert request.sampling.temperature == 0.0
        assert request.max_tokens == 3 and request.top_logprobs == 1
        assert request.min_tokens == 2 and 0x7A in request.stop_token_ids
    assert echoing.engine.requests[0].seed == 5


def test_a_prompt_that_is_too_long_may_be_truncated(echoing: Opened) -> None:
    context = echoing.engine.info.max_model_len
    prompt = "a" * context + "end"
    with pytest.raises(FailedRun, match="context"):
        echoing.llm.generate(prompt, max_tokens=8)
    echoing.llm.generate(prompt, max_tokens=8, truncate=True)
    (request,) = echoing.engine.requests
    assert list(request.token_ids[-3:]) == ids("end") and len(request.token_ids) == context - 8


def test_a_chat_takes_messages_or_dictionaries(echoing: Opened) -> None:
    answers = [echoing.llm.chat(HI), echoing.llm.chat([Message("user", (Text("hi"),))])]
    assert text(answers[0]) == text(answers[1]) == "user\nhi\nassistant\n"


def test_calls_of_functions_are_parts() -> None:
    opened = Opened(ids('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'))
    tools = [FunctionTool("f", "does f", {"type": "object"})]
    answer = opened.llm.chat([{"role": "user", "content": "do f"}], tools=tools)
    (call,) = answer.choices[0].parts
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments, answer.choices[0].finish) == ("f", '{"x": 1}', "tool_calls")
    policy = ToolPolicy("none")
    answer = opened.llm.chat([{"role": "user", "content": "do f"}], tools=tools, tool_policy=policy)
    assert isinstance(answer.choices[0].parts[0], Text)
    opened.llm.close()


def test_a_stream_gives_the_events_as_they_happen() -> None:
    gate = asyncio.Event()
    opened = Opened([*ids("ab"), gate, *ids("cd"), IM_END])
    events = []
    with opened.llm as llm:
        for event in llm.stream(HI):
            events.append(event)
            if isinstance(event, TextDelta) and event.text == "b":
                opened.llm._thread._loop.call_soon_threadsafe(gate.set)
    assert isinstance(events[0], RunStarted) and isinstance(events[-1], RunEnded)
    assert shown(events) == "abcd"


def test_closing_a_stream_aborts_it_and_leaves_the_llm_usable() -> None:
    gate = asyncio.Event()
    opened = Opened(lambda r: [0x61, gate] if r is opened.engine.requests[0] else echo(r))
    with opened.llm as llm:
        stream = llm.stream("x")
        for event in stream:
            if isinstance(event, TextDelta):
                break
        stream.close()  # type: ignore[attr-defined]
        assert text(llm.generate("go on")[0]) == "go on"
    assert opened.engine.aborted == [opened.engine.requests[0].id]


def test_failures_are_raised_by_all_forms() -> None:
    opened = Opened([0x61, Unavailable("restarting")])
    with opened.llm as llm:
        with pytest.raises(FailedRun, match="restarting"):
            llm.generate(["a", "b"])
        with pytest.raises(FailedRun, match="restarting"):
            list(llm.stream("x"))
        assert not opened.engine.active


def test_a_defect_is_raised_too() -> None:
    opened = Opened([ZeroDivisionError()])
    with opened.llm as llm, pytest.raises(ZeroDivisionError):
        list(llm.stream("x"))


@pytest.mark.parametrize(
    "options", [{"n": "two"}, {"sampling": Sampling(temperature="hot")}, {"n": 0}]
)
def test_values_of_a_wrong_type_or_range_are_refused(echoing: Opened, options: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        echoing.llm.generate("x", **options)
    assert caught.value.status == 400


def test_unknown_options_and_odd_messages_are_refused(echoing: Opened) -> None:
    with pytest.raises(TypeError, match="temperature"):
        echoing.llm.generate("x", temperature=1)  # type: ignore[call-arg]
    for message in ({"role": "user"}, {"role": "user", "content": 1}, {"role": "x", "content": ""}):
        with pytest.raises(InvalidRequest):
            echoing.llm.chat([message])  # type: ignore[list-item]


async def test_async_forms_answer_in_the_caller_s_loop(echoing: Opened) -> None:
    llm = echoing.llm
    first, chat = await asyncio.gather(llm.agenerate(["a", "b"]), llm.achat(HI))
    assert [text(a) for a in first] == ["a", "b"] and text(chat).startswith("user")
    assert shown([event async for event in llm.astream("xyz")]) == "xyz"
    (answer,) = await llm.arun([GenerateRequest(prompt="p", n=2)])
    assert len(answer.choices) == 2


async def test_cancelling_an_async_call_aborts_it() -> None:
    opened = Opened([0x61, asyncio.Event()])
    with opened.llm as llm:
        task = asyncio.create_task(llm.agenerate("x"))
        async for event in llm.astream("y"):
            if isinstance(event, TextDelta):
                break
        while len(opened.engine.requests) < 2:  # the other one may start later
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not opened.engine.active and len(opened.engine.aborted) == 2


def test_closing_aborts_what_runs_and_refuses_what_follows() -> None:
    opened = Opened([0x61, asyncio.Event()])
    stream = opened.llm.stream("x")
    next(stream)
    opened.llm.close()
    opened.llm.close()
    assert opened.closed.is_set() and not opened.engine.active
    with pytest.raises(Unavailable, match="closed"):
        opened.llm.generate("x")
    with pytest.raises(Unavailable, match="closed"):
        list(stream)


def test_closing_ends_the_processes_that_try_grammars() -> None:
    before = set(psutil.Process().children())
    for _ in range(2):
        with Opened(echo).llm as llm:
            llm.generate("ab", constraint=Constraint("regex", "ab"))
            assert set(psutil.Process().children()) - before
        assert not set(psutil.Process().children()) - before


async def test_waiting_callers_get_unavailable_when_the_llm_is_closed() -> None:
    opened = Opened([0x61, asyncio.Event()])
    stream = opened.llm.astream("x")
    await anext(stream)
    waiting = [
        asyncio.create_task(opened.llm.agenerate("x")),
        asyncio.create_task(asyncio.to_thread(opened.llm.generate, "x")),
    ]
    while len(opened.engine.requests) < 3:
        await asyncio.sleep(0)
    await asyncio.to_thread(opened.llm.close)
    for task in waiting:
        with pytest.raises(Unavailable, match="closed"):
            await task
    with pytest.raises(Unavailable, match="closed"):
        [event async for event in stream]


def test_a_forgotten_llm_closes_its_model() -> None:
    closed = threading.Event()

    async def close() -> None:
        closed.set()

    async def start() -> EmbeddedModel:
        return embedded(close)

    llm = LLM.from_embedded_model(start)
    llm.generate("x")
    del llm
    gc.collect()
    assert closed.wait(30)


def embedded(close: Callable[[], Awaitable[None]]) -> EmbeddedModel:
    loop = AgentLoop(Generator(ScriptedEngine(echo), tiny_tokenizer()))
    return EmbeddedModel(Runners(loop), 2, close)


def test_requests_during_a_close_are_refused() -> None:
    closing, go_on = threading.Event(), threading.Event()

    async def close() -> None:
        closing.set()
        go_on.wait()  # as one that frees a model in this thread

    async def start() -> EmbeddedModel:
        return embedded(close)

    llm = LLM.from_embedded_model(start)
    closer = threading.Thread(target=llm.close)
    closer.start()
    try:
        closing.wait()
        with pytest.raises(Unavailable, match="closed"):
            llm.generate("x")
    finally:
        go_on.set()
        closer.join()


def test_the_collector_may_finalize_an_llm_in_a_thread_that_its_close_waits_for() -> None:
    forget, closed = threading.Event(), threading.Event()

    def collect() -> None:
        forget.wait()
        gc.collect()

    worker = threading.Thread(target=collect, daemon=True)

    async def close() -> None:
        while worker.is_alive():
            await asyncio.sleep(0)
        closed.set()

    async def start() -> EmbeddedModel:
        worker.start()
        return embedded(close)

    gc.disable()  # it is not collected otherwise
    try:
        cycle: list[Any] = [LLM.from_embedded_model(start)]
        cycle.append(cycle)
        del cycle
        forget.set()
        assert closed.wait(30)
    finally:
        gc.enable()


def test_another_process_is_refused(echoing: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        with pytest.raises(Unavailable, match="another process"):
            echoing.llm.generate("x")
        echoing.llm.close()
    assert text(echoing.llm.generate("x")[0]) == "x"


SCRIPT = """
import threading
from tests.support.echo_engine import EchoCore
from tests.support.checkpoints.tiny_tokenizer import tiny_tokenizer
from penstock.agent import AgentLoop, Runners
from penstock.engine.local import LocalEngine
from penstock.generation import Generator
from penstock.llm import LLM, EmbeddedModel
from penstock.llm.embedded_model import start_embedded_model

class Core(EchoCore):
    def close(self):
        running = {thread.name for thread in threading.enumerate()}
        print("still computes" if "penstock-engine" in running else "closed")

async def start():
    engine = LocalEngine(Core())
    loop = AgentLoop(Generator(engine, tiny_tokenizer()))
    return EmbeddedModel(Runners(loop), 2, engine.close)

llm = LLM.from_embedded_model(start)
stream = llm.stream("a" * 100)
next(stream)
"""


@pytest.mark.parametrize("last_line", ["", "del stream, llm", "llm.close()"])
def test_a_script_that_ends_closes_its_llm(last_line: str) -> None:
    path = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT + last_line],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("closed\n", "")


def test_a_start_that_fails_is_raised_and_leaves_no_thread() -> None:
    async def start() -> EmbeddedModel:
        raise SettingsError("no")

    before = threading.active_count()
    with pytest.raises(SettingsError):
        LLM.from_embedded_model(start)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("max_num_seqs", "16", r"expected 'int \| null'"),
        ("dtype", "f16", "it may be 'auto', 'f32'"),
        ("quantization", "int5", "it may be 'int8', 'int4', 'fp8'"),
        ("lora", 5, "expected 'object"),
    ],
)
def test_settings_of_a_wrong_type_are_refused(name: str, value: Any, told: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}: .*{told}"):
        LLM("unheard/of", **{name: value})


def test_a_missing_model_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelError, match="no such file"):
        LLM(tmp_path / "model")
    gc.collect()
    assert not caplog.records  # "Task exception was never retrieved"


def test_a_start_that_fails_leaves_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = threading.Event()

    async def start() -> int:
        try:
            with pytest.raises(ModelError, match="no such file"):
                await start_embedded_model(EngineSettings(model=str(tmp_path / "model")))
            return len(asyncio.all_tasks())
        finally:
            found.set()  # only now do the files of the text side come to an end

    monkeypatch.setattr("penstock.llm.embedded_model._find_files", lambda settings: found.wait())
    assert asyncio.run(start()) == 1  # `start` itself


def test_settings_are_checked_before_anything_loads() -> None:
    with pytest.raises(SettingsError, match="max_num_seqs"):
        LLM("no-such-model", max_num_seqs=0)
    with pytest.raises(TypeError):
        LLM("no-such-model", no_such_setting=1)
