"""Rounds of server tools, over a scripted engine and real tools of the test."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from penstock.agent.tools.tool import CallContext, OutputFile
from penstock.config import AgentSettings
from penstock.dialog import (
    ApprovalRequired,
    Event,
    FileProduced,
    FunctionTool,
    GenerateRequest,
    Limits,
    Message,
    PartEnded,
    PartStarted,
    Permissions,
    PythonTool,
    RequestedFile,
    RunEnded,
    RunFailed,
    RunStarted,
    SearchTool,
    Text,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolPolicy,
    ToolResult,
    TurnEnded,
)
from penstock.dialog.fold import fold
from tests.support.agent_loops import (
    Arguments,
    ScriptedAgent,
    TestTool,
    ask,
    call,
    scripted_agent,
)
from tests.support.stores import opened, sqlite_settings

DENY = AgentSettings(agent_permission="deny")
OWN = FunctionTool("own", "The client's.", {"type": "object", "properties": {}})


def of(kind: type, events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_the_model_sees_the_result_of_its_call_and_answers() -> None:
    tool = TestTool(work=lambda a, _: a.text.upper())
    agent = scripted_agent(["Wait. " + call("echo", text="hi"), "It is HI."], [tool])
    events = await agent.run(ask())
    answer = fold(events)
    assert tool.calls == ["hi"]
    assert '{"output":"HI"}' in agent.prompt(1)
    assert call("echo", text="hi") in agent.prompt(1)
    assert [type(p).__name__ for p in answer.choices[0].parts] == ["Text", "ToolRun", "Text"]
    assert answer.choices[0].finish == "stop" and answer.status == "completed"
    assert len(of(RunStarted, events)) == len(of(TurnEnded, events)) == 1
    run = answer.choices[0].tool_runs[0]
    assert (run.round, run.call.name, json.loads(run.result.text)) == (0, "echo", {"output": "HI"})


async def test_the_prompt_of_a_round_extends_that_of_the_round_before() -> None:
    """So that the prefix cache serves all of it."""
    texts = [call("echo", text="a"), call("echo", text="b"), "ok"]
    agent = scripted_agent(texts, [TestTool()])
    await agent.run(ask())
    prompts = [request.token_ids for request in agent.engine.requests]
    for text, earlier, later in zip(texts, prompts, prompts[1:], strict=False):
        known = earlier + tuple(text.encode())
        assert later[: len(known)] == known


async def test_usage_is_the_sum_of_all_rounds() -> None:
    agent = scripted_agent([call("echo", text="a"), call("echo", text="b"), "ok"], [TestTool()])
    usage = fold(await agent.run(ask())).usage
    prompts = [len(request.token_ids) for request in agent.engine.requests]
    assert usage.prompt_tokens == sum(prompts) and len(prompts) == 3
    written = (call("echo", text="a"), call("echo", text="b"), "ok")
    assert usage.completion_tokens == sum(len(text) for text in written)


async def test_all_calls_of_a_round_run_in_order() -> None:
    tool = TestTool()
    agent = scripted_agent([call("echo", text="1") + "\n" + call("echo", text="2"), "ok"], [tool])
    events = await agent.run(ask())
    assert tool.calls == ["1", "2"]
    order = [
        (type(e).__name__, e.part) for e in events if isinstance(e, ToolCalling | ToolCompleted)
    ]
    assert order == [
        ("ToolCalling", 0),
        ("ToolCompleted", 0),
        ("ToolCalling", 1),
        ("ToolCompleted", 1),
    ]


async def test_calls_that_only_read_run_side_by_side() -> None:
    waiting: list[asyncio.Event] = []

    async def meet(arguments: Arguments, context: CallContext) -> str:
        mine = asyncio.Event()
        waiting.append(mine)
        if len(waiting) == 2:
            for event in waiting:
                event.set()
        await mine.wait()  # ends only if the other call has started too
        return arguments.text

    tool = TestTool(reads_only=True, work=meet)
    agent = scripted_agent([call("echo", text="1") + "\n" + call("echo", text="2"), "ok"], [tool])
    answer = fold(await agent.run(ask()))
    assert [run.call.arguments for run in answer.choices[0].tool_runs] == [
        '{"text": "1"}',
        '{"text": "2"}',
    ]


async def test_a_call_of_the_client_ends_the_turn_after_the_server_calls() -> None:
    tool = TestTool()
    texts = [call("echo", text="x"), call("own") + "\n" + call("echo", text="y"), "never"]
    agent = scripted_agent(texts, [tool])
    events = await agent.run(ask(tools=(OWN,)))
    answer = fold(events)
    assert tool.calls == ["x", "y"]
    assert answer.choices[0].finish == "tool_calls"
    delivered = [e.name for e in of(PartStarted, events) if e.kind == "tool_call"]
    assert delivered == ["own"]
    assert len(agent.engine.requests) == 2


async def test_parts_are_numbered_without_gaps() -> None:
    texts = ["a " + call("echo", text="x"), "b " + call("own") + call("echo", text="y")]
    agent = scripted_agent(texts, [TestTool()])
    events = await agent.run(ask(tools=(OWN,)))
    ended = [e.part for e in events if isinstance(e, PartEnded | ToolCompleted)]
    assert sorted(ended) == list(range(5))


@pytest.mark.parametrize("limit", [0, 1, 3])
async def test_the_limit_of_rounds_ends_the_run(limit: int) -> None:
    tool = TestTool()
    agent = scripted_agent([call("echo", text=str(i)) for i in range(9)], [tool])
    answer = fold(await agent.run(ask(limits=Limits(max_rounds=limit))))
    assert len(tool.calls) == limit
    assert (answer.choices[0].finish, answer.status) == ("rounds", "incomplete")


async def test_the_servers_limit_holds_for_requests_without_their_own() -> None:
    tool = TestTool()
    settings = AgentSettings(max_tool_rounds=2)
    agent = scripted_agent([call("echo", text=str(i)) for i in range(9)], [tool], settings)
    await agent.run(ask())
    assert len(tool.calls) == 2


async def test_a_model_that_repeats_itself_must_answer_without_tools() -> None:
    agent = scripted_agent([call("echo", text="same")] * 2 + ["done"], [TestTool()])
    answer = fold(await agent.run(ask()))
    assert answer.choices[0].finish == "stop" and answer.choices[0].parts[-1] == Text("done")
    assert "A tool of a test." in agent.prompt(1) and "A tool of a test." not in agent.prompt(2)
    assert agent.prompt(2).count('{"output":"same"}') == 1


async def test_a_model_that_says_nothing_after_its_calls_is_asked_without_tools() -> None:
    agent = scripted_agent([call("echo", text="x"), "", "At last."], [TestTool()])
    answer = fold(await agent.run(ask()))
    assert [p for p in answer.choices[0].parts if isinstance(p, Text)] == [Text("At last.")]
    silent = scripted_agent([call("echo", text="x"), "", "", "never"], [TestTool()])
    answer = fold(await silent.run(ask()))
    assert len(silent.engine.requests) == 3 and answer.choices[0].parts[-1] == Text("")


async def test_equal_calls_with_new_results_may_go_on() -> None:
    results = iter("123")
    tool = TestTool(work=lambda *_: next(results))
    agent = scripted_agent([call("echo", text="poll")] * 3 + ["done"], [tool])
    answer = fold(await agent.run(ask()))
    assert len(answer.choices[0].tool_runs) == 3
    assert "A tool of a test." in agent.prompt(3)


async def test_a_model_that_repeats_itself_sees_only_its_first_call() -> None:
    agent = scripted_agent(
        [call("echo", text="first"), *[call("echo", text="same")] * 3, "done"], [TestTool()]
    )
    await agent.run(ask())
    prompt = bytes(t for t in agent.engine.requests[-1].token_ids if t < 256).decode()
    assert prompt.count("first") == prompt.count("same") == 2, "each a call and its result"


async def test_rounds_that_differ_only_in_their_time_are_the_same() -> None:
    times = iter(range(9))
    tool = TestTool(work=lambda *_: {"execution_time_ms": next(times), "stdout": "1"})
    agent = scripted_agent([call("echo", text="same")] * 3 + ["done"], [tool])
    answer = fold(await agent.run(ask()))
    assert answer.choices[0].parts[-1] == Text("done")
    assert len(agent.engine.requests) == 4


async def test_max_tokens_bounds_all_rounds_together() -> None:
    first = call("echo", text="x")
    agent = scripted_agent([first, "0123456789"], [TestTool()])
    answer = fold(await agent.run(ask(limits=Limits(max_tokens=len(first) + 4))))
    assert answer.choices[0].finish == "length"
    assert answer.choices[0].parts[-1] == Text("0123")


async def test_a_cut_off_call_does_not_run() -> None:
    tool = TestTool()
    agent = scripted_agent(['<tool_call>\n{"name": "echo", "arguments": {"text": "ab'], [tool])
    answer = fold(await agent.run(ask()))
    assert tool.calls == [] and answer.choices[0].finish == "stop"


async def test_bad_arguments_are_an_error_that_the_model_sees() -> None:
    tool = TestTool()
    agent = scripted_agent([call("echo", number=3), "sorry"], [tool])
    answer = fold(await agent.run(ask()))
    assert tool.calls == []
    assert answer.choices[0].tool_runs[0].result.is_error
    assert "number" in agent.prompt(1)


async def test_a_tool_that_raises_is_an_error_that_the_model_sees() -> None:
    def fail(arguments: Arguments, context: CallContext) -> str:
        raise RuntimeError("secret path /etc")

    agent = scripted_agent([call("echo", text="x"), "sorry"], [TestTool(work=fail)])
    answer = fold(await agent.run(ask()))
    assert answer.status == "completed"
    assert "the tool failed" in agent.prompt(1) and "secret" not in agent.prompt(1)


async def test_closing_the_run_ends_the_call() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def hang(arguments: Arguments, context: CallContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    agent = scripted_agent([call("echo", text="x")], [TestTool(work=hang)])
    async with aclosing(agent.loop.run(ask())) as events:
        async for event in events:
            if isinstance(event, ToolCalling):
                reading = asyncio.ensure_future(anext(events))
                await started.wait()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                break
    assert ended.is_set()


async def test_required_tool_choice_binds_only_the_first_round() -> None:
    agent = scripted_agent([call("echo", text="x"), "free"], [TestTool()])
    answer = fold(await agent.run(ask(tool_policy=ToolPolicy("required"))))
    assert answer.choices[0].parts[-1] == Text("free")
    assert agent.engine.requests[0].constraint is not None
    # The second constraint allows free text: that of the first begins with a call.
    assert agent.engine.requests[1].constraint != agent.engine.requests[0].constraint


async def test_no_tools_are_offered_if_the_request_forbids_calls() -> None:
    agent = scripted_agent(["plain"], [TestTool()])
    await agent.run(ask(tool_policy=ToolPolicy("none")))
    assert "echo" not in agent.prompt(0)


async def test_output_files_are_stored_and_described_to_the_model() -> None:
    file = OutputFile("a.csv", b"x,y\n1,2\n")
    agent = scripted_agent([call("echo", text="x"), "ok"], [TestTool(files=(file,))])
    events = await agent.run(ask())
    produced = of(FileProduced, events)[0].file
    assert produced.id.startswith("file_") and produced.id.endswith("_r0_0")
    assert (produced.name, produced.format, produced.text) == ("a.csv", "csv", "x,y\n1,2\n")
    assert await agent.files.read(produced.id) == file.data
    assert produced.id in agent.prompt(1) and "x,y" in agent.prompt(1)
    assert fold(events).choices[0].files == [produced]


async def test_the_model_sees_at_most_1024_bytes_of_an_output_file() -> None:
    tool = TestTool(files=(OutputFile("a.txt", b"x" * 1025), OutputFile("b.txt", b"y" * 1024)))
    agent = scripted_agent([call("echo", text="x"), "ok"], [tool])
    await agent.run(ask())
    long, short = json.loads(fold_result(agent))["files"]
    assert long["preview"] == "x" * 1024 and long["truncated"] is True and "text" not in long
    assert short["text"] == "y" * 1024 and "truncated" not in short


def fold_result(agent: ScriptedAgent) -> str:
    """Return the result that the second prompt shows."""
    return agent.prompt(1).split("<tool_response>\n")[1].split("\n</tool_response>")[0]


async def test_256_rounds_are_the_limit_without_another_one() -> None:
    tool = TestTool()
    agent = scripted_agent([call("echo", text=str(i)) for i in range(300)], [tool])
    answer = fold(await agent.run(ask()))
    assert len(tool.calls) == 256 and answer.choices[0].finish == "rounds"


async def test_an_unchanged_output_file_is_announced_once() -> None:
    tool = TestTool(files=(OutputFile("a.csv", b"1"),))
    agent = scripted_agent([call("echo", text="1"), call("echo", text="2"), "ok"], [tool])
    events = await agent.run(ask())
    assert len(of(FileProduced, events)) == 1
    first, second = fold(events).choices[0].tool_runs
    assert first.files == second.files


async def test_a_function_with_the_name_of_a_server_tool_is_refused() -> None:
    agent = scripted_agent(["no"], [TestTool()])
    events = await agent.run(ask(tools=(FunctionTool("echo"),)))
    assert isinstance(events[0], RunFailed) and events[0].field == "tools[0]"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"hosted": (SearchTool(),)}, "hosted"),
        ({"hosted": (PythonTool(),)}, "hosted"),
        ({"files": (RequestedFile("a.csv"),)}, "files"),
    ],
)
async def test_tools_that_are_off_are_refused(fields: dict[str, Any], field: str) -> None:
    events = await scripted_agent(["no"]).run(ask(**fields))
    assert isinstance(events[0], RunFailed)
    assert (events[0].status, events[0].field) == (400, field)


async def test_denied_calls_do_not_run_and_the_model_learns_why() -> None:
    tool = TestTool()
    agent = scripted_agent(
        [call("echo", text="x"), "ok"], [tool], AgentSettings(agent_permission="deny")
    )
    answer = fold(await agent.run(ask()))
    assert tool.calls == []
    assert json.loads(answer.choices[0].tool_runs[0].result.text)["status"] == "denied"


async def test_a_request_cannot_loosen_the_servers_permission() -> None:
    tool = TestTool()
    agent = scripted_agent(
        [call("echo", text="x"), "ok"], [tool], AgentSettings(agent_permission="deny")
    )
    await agent.run(ask(permissions=Permissions(agent="auto")))
    assert tool.calls == []


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_call_waits_for_the_decision(decision: Any) -> None:
    tool = TestTool()
    agent = scripted_agent([call("echo", text="x"), "ok"], [tool])
    seen = []
    async for event in agent.loop.run(ask(permissions=Permissions(agent="ask"))):
        seen.append(event)
        if isinstance(event, ApprovalRequired):
            assert tool.calls == [] and json.loads(event.arguments) == {"text": "x"}
            assert agent.approvals.decide(event.approval_id, decision, "not today")
    assert tool.calls == (["x"] if decision == "approve" else [])
    assert ("not today" in agent.prompt(1)) == (decision == "deny")


async def test_a_remembered_approval_holds_for_the_session(tmp_path: Path) -> None:
    tool = TestTool()
    texts = [call("echo", text="1"), "ok", call("echo", text="2"), "ok", call("echo", text="3")]
    asked = []
    async with opened(sqlite_settings(tmp_path)) as store:
        agent = scripted_agent(texts, [tool], sessions=store.sessions)
        for session in ("a", "a", "b"):
            request = ask(permissions=Permissions(agent="ask"), session=session)
            async for event in agent.loop.run(request):
                if isinstance(event, ApprovalRequired):
                    asked.append((session, event.session))
                    agent.approvals.decide(event.approval_id, "approve", remember=True)
    assert asked == [("a", "a"), ("b", "b")]
    assert tool.calls == ["1", "2", "3"]


async def test_a_session_keeps_the_calls_of_server_tools(tmp_path: Path) -> None:
    async with opened(sqlite_settings(tmp_path)) as store:
        agent = scripted_agent(
            [call("echo", text="1"), "First.", "Second."], [TestTool()], sessions=store.sessions
        )
        first = await agent.run(ask())
        session = of(RunStarted, first)[0].session
        assert session is not None and session.startswith("sess_")
        await agent.run(ask("again", session=session))
        assert call("echo", text="1") in agent.prompt(2) and '{"output":"1"}' in agent.prompt(2)
        stored = await store.sessions.get(session)
        assert stored is not None
        roles = [message.role for message in stored.messages]
        assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]


async def test_a_client_that_sends_the_whole_conversation_keeps_hidden_calls(
    tmp_path: Path,
) -> None:
    """The client was shown its own call and the answer, not the call of the server tool."""
    texts = [call("own") + call("echo", text="1"), "Done.", "Again."]
    async with opened(sqlite_settings(tmp_path)) as store:
        agent = scripted_agent(texts, [TestTool()], sessions=store.sessions)
        first = await agent.run(ask(tools=(OWN,), session="s"))
        own = next(e.value for e in of(PartEnded, first) if isinstance(e.value, ToolCall))
        result = Message("tool", (ToolResult(own.id, "42", "own"),))
        sent = (Message("user", (Text("go"),)), Message("assistant", (own,)), result)
        await agent.run(GenerateRequest(messages=sent, tools=(OWN,), session="s"))
        shown = agent.prompt(1)
        assert call("own") in shown and call("echo", text="1") in shown
        assert agent.prompt(1).count('{"output":"1"}') == 1


async def test_a_run_without_tools_goes_to_the_generator() -> None:
    agent = scripted_agent(["plain"])
    events = await agent.run(ask())
    assert of(RunStarted, events)[0].session is None
    assert isinstance(events[-1], RunEnded)
