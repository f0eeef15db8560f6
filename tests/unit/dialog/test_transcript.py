"""The messages that an answer with calls of server tools contains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.dialog import (
    CustomActivity,
    Message,
    Part,
    Reasoning,
    ServerTool,
    Text,
    ToolCall,
    ToolResult,
    ToolRun,
)
from penstock.dialog.transcript import answer_messages

TOOL = ServerTool(name="service_list_files", kind="file", source="built_in", label="File access")


def run(id: str, round: int) -> ToolRun:
    return ToolRun(
        round=round,
        call=ToolCall(id, TOOL.name, "{}"),
        tool=TOOL,
        activity=CustomActivity(arguments="{}", status="success"),
        result=ToolResult(id, f"result of {id}", TOOL.name),
    )


def call(id: str) -> ToolCall:
    return ToolCall(id, TOOL.name, "{}")


def result(id: str) -> Message:
    return Message("tool", (ToolResult(id, f"result of {id}", TOOL.name),))


def test_an_answer_without_parts_has_no_messages() -> None:
    assert answer_messages(()) == ()


def test_an_answer_without_server_tools_is_one_message() -> None:
    parts = (Reasoning("r"), Text("t"), ToolCall("c", "f", "{}"))
    assert answer_messages(parts) == (Message("assistant", parts),)


def test_the_calls_of_a_round_share_a_message_and_their_results_follow() -> None:
    parts = [Text("I look."), run("a", 0), run("b", 0), Text("Done.")]
    assert answer_messages(parts) == (
        Message("assistant", (Text("I look."), call("a"), call("b"))),
        result("a"),
        result("b"),
        Message("assistant", (Text("Done."),)),
    )


def test_rounds_without_text_between_them_stay_separate() -> None:
    assert answer_messages([run("a", 0), run("b", 1)]) == (
        Message("assistant", (call("a"),)),
        result("a"),
        Message("assistant", (call("b"),)),
        result("b"),
    )


def test_a_client_call_shares_the_message_of_the_server_calls_of_its_round() -> None:
    own = ToolCall("mine", "f", "{}")
    same_round = answer_messages([own, run("a", 0)])
    next_round = answer_messages([run("a", 0), own, run("b", 1)])
    assert same_round == (Message("assistant", (own, call("a"))), result("a"))
    assert next_round == (
        Message("assistant", (call("a"),)),
        result("a"),
        Message("assistant", (own, call("b"))),
        result("b"),
    )


def test_an_unfinished_call_is_left_out() -> None:
    cut = ToolCall("mine", "f", '{"a": ', whole=False)
    assert answer_messages([Text("hello"), cut]) == (Message("assistant", (Text("hello"),)),)


@st.composite
def answers(draw: st.DrawFn) -> list[Part | ToolRun]:
    """Generate the parts of an answer with up to four rounds."""
    parts: list[Part | ToolRun] = []
    for round in range(draw(st.integers(0, 4))):
        for _ in range(draw(st.integers(0, 3))):
            made: list[Part | ToolRun] = [
                Text("t"),
                Reasoning("r"),
                ToolCall(f"own{len(parts)}", "f", "{}"),
                run(f"call{len(parts)}", round),
            ]
            parts.append(draw(st.sampled_from(made)))
    return parts


@given(answers())
def test_no_part_is_lost_and_each_result_follows_its_call(parts: list[Part | ToolRun]) -> None:
    messages = answer_messages(parts)
    spoken = [part for m in messages if m.role == "assistant" for part in m.parts]
    assert spoken == [part.call if isinstance(part, ToolRun) else part for part in parts]
    results = [part for m in messages if m.role == "tool" for part in m.parts]
    assert results == [part.result for part in parts if isinstance(part, ToolRun)]
    called: set[str] = set()
    for message in messages:
        if message.role == "assistant":
            called = {part.id for part in message.parts if isinstance(part, ToolCall)}
        else:
            assert all(isinstance(p, ToolResult) and p.call_id in called for p in message.parts)
