"""The chat in the terminal: streaming, interrupts, tools and approvals."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest

from penstock.base.errors import Unavailable
from penstock.dialog import (
    ApprovalRequired,
    FileProduced,
    Message,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunFailed,
    RunStarted,
    ShellTool,
    Text,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
)
from penstock.dialog.server_tools import ProducedFile, ServerTool, ShellActivity, ToolRun
from tests.support.servers.http_server import spoken
from tests.support.terminal_chats import ChatBench


def test_answer_is_printed_as_it_arrives_and_kept_in_the_dialog():
    bench = ChatBench(spoken("Hel", "lo [bold]", "!"))
    bench.ask("hi")
    bench.ask("again")
    assert bench.out == "Hello [bold]!\n" * 2
    assert [m.role for m in bench.requests[1].messages] == ["user", "assistant", "user"]
    assert bench.requests[1].messages[1] == Message("assistant", (Text("Hello [bold]!"),))


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_without_markdown_is_printed_unchanged(terminal):
    """A Makefile contains tabs, a settings file may contain `:key:`, and lines may be long."""
    said = ["a\tb\n", "\tc ", ":key: [bold]x[/bold] https://x.example ", "y" * 300, "👩\u200d🚀"]
    bench = ChatBench(spoken(*said), terminal=terminal)
    bench.ask("hi")
    assert bench.out == "".join(said) + "\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_cannot_control_the_terminal(terminal):
    said = "a\x1b[2J\x9b1mb\r\x07\x08c"
    bench = ChatBench(spoken(said), terminal=terminal)
    bench.ask("hi")
    assert bench.out == ("a[2J1mbc\n" if terminal else said + "\n")
    bench.ask("again")
    assert bench.requests[1].messages[1] == Message("assistant", (Text(said),))


def interrupting(*pieces):
    """Return a script that gets Ctrl-C after the pieces and then waits forever."""

    def script(request):
        yield from list(spoken(*pieces)(request))[: 2 + len(pieces)]
        os.kill(os.getpid(), signal.SIGINT)
        yield asyncio.Event()

    return script


def test_interrupt_stops_the_answer_and_keeps_its_text():
    bench = ChatBench(interrupting("Hel"))
    with pytest.raises(KeyboardInterrupt):  # `main` turns it into exit status 130
        bench.ask("hi")
    assert "Hel [stopped]" in bench.out and bench.backend.loop.running == 0
    assert [block.text for block in bench.conversation.last_answer.blocks] == ["Hel"]


def test_chat_continues_after_an_interrupted_answer():
    bench = ChatBench(interrupting("Hel"), ["hi", "/exit", "never read"])
    bench.talk()
    assert "stopped" in bench.out and len(bench.requests) == 1
    assert bench.reader.unread == ["never read"]


def test_a_question_whose_answer_has_no_text_is_replaced_by_the_next():
    bench = ChatBench(interrupting(), ["one", "two"])
    bench.talk()
    assert bench.requests[1].messages == (Message("user", (Text("two"),)),)


def test_chat_reports_a_failed_answer_and_continues():
    failed = RunFailed(503, "server_error", "unavailable", "the engine is restarting")
    lines = ["hi", "/temperature 0.5", "hi", "/exit", "never read"]
    bench = ChatBench(lambda r: iter([RunStarted("m", 0, 1), failed]), lines)
    bench.talk()
    assert bench.out.count("the engine is restarting") == 2
    assert bench.requests[1].sampling.temperature == 0.5
    assert bench.reader.unread == ["never read"]


def test_a_failed_question_can_be_asked_again():
    outcomes = iter([lambda r: iter([Unavailable("not now")]), spoken("Hi.")])
    bench = ChatBench(lambda r: next(outcomes)(r), ["hi", "/retry"])
    bench.talk()
    assert bench.out.endswith("Hi.\n")
    assert [m.role for m in bench.requests[1].messages] == ["user"]


def test_the_first_line_names_the_model_and_its_place():
    bench = ChatBench(spoken())
    bench.talk()
    assert bench.out.replace("\n", " ").startswith("scripted  in this process; /help lists")


def test_reasoning_is_printed_apart_from_the_answer():
    def script(request):
        yield RunStarted("m", 0, 1)
        yield PartStarted(0, 0, "reasoning")
        yield ReasoningDelta(0, 0, "Two?")
        yield PartEnded(0, 0, Reasoning("Two?"))
        later = list(spoken("Two.")(request))[1:]
        yield from (msgspec.structs.replace(e, part=1) if hasattr(e, "part") else e for e in later)

    bench = ChatBench(script)
    bench.ask("1 + 1?")
    assert bench.out == "Two?\n\nTwo.\n"
    bench.ask("Sure?")
    assert bench.requests[1].messages[1] == Message("assistant", (Text("Two."),))


def test_redirected_standard_output_holds_answers_only():
    def script(request):
        if len(bench.requests) == 2:
            yield Unavailable("not now")
        yield from spoken("Hel", "lo")(request)

    bench = ChatBench(script, ["hi", "/clear", "again"], notes_apart=True)
    bench.talk()
    assert bench.out == "Hello\n"
    told = ("/help lists", "Conversation cleared.", "not now")
    assert all(text in bench.notes for text in told)


def test_single_answer_fails_with_its_error():
    bench = ChatBench(lambda r: iter([Unavailable("not now")]))
    with pytest.raises(Unavailable):
        bench.ask("hi")


SHELL = ServerTool("service_shell", "shell", "built_in", "Shell command")
ACTIVITY = ShellActivity(commands=("ls",))
CALL = ToolCall("call_1", "service_shell", "{}")


def tool_turn(*between):
    """Return a script of a turn with a shell call, which waits if `between` says so."""

    def script(request):
        first, *rest = spoken("done")(request)
        done = ShellActivity(commands=("ls",), status="success", stdout="a\x1b[2J", exit_code=0)
        run = ToolRun(
            round=0, call=CALL, tool=SHELL, activity=done, result=ToolResult("call_1", "a")
        )
        file = ProducedFile(
            id="f", name="sub/a.txt", format="txt", mime_type="text/plain", size_bytes=3,
            created_at=0, tool="service_shell", round=0, turn=0, container_id="c", text="abc",
        )  # fmt: skip
        yield first
        yield ToolCalling(0, 0, 0, CALL, SHELL, ACTIVITY)
        yield from between
        yield ToolCompleted(0, 0, run)
        yield FileProduced(0, file)
        yield from (msgspec.structs.replace(e, part=1) if hasattr(e, "part") else e for e in rest)

    return script


def test_a_call_its_result_and_its_files_are_notes():
    bench = ChatBench(tool_turn(), notes_apart=True)
    bench.ask("hi")
    assert bench.out == "done\n"
    assert "[Shell command]\n  $ ls\n  a\\x1b[2J\n" in bench.notes
    assert "file sub/a.txt, 3 bytes  (/save sub/a.txt)" in bench.notes


def test_the_next_request_has_the_call_and_its_result():
    bench = ChatBench(tool_turn())
    bench.ask("hi")
    bench.ask("again")
    called, result, said = bench.requests[1].messages[1:4]
    assert called.parts == (ToolCall("call_1", "service_shell", "{}"),)
    assert result.parts[0].text == "a" and said.parts == (Text("done"),)


def test_a_file_of_a_tool_is_written_only_on_request_and_replaces_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    bench = ChatBench(tool_turn(), ["hi", "/save sub/a.txt", "/save sub/a.txt"])
    bench.talk()
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "abc"
    assert "Wrote a.txt, 3 bytes." in bench.out and "a.txt: File exists" in bench.out


WAITING = ApprovalRequired(0, 0, "appr_1", "s", 0, SHELL, "{}")


def test_without_a_person_an_approval_is_denied():
    bench = ChatBench(tool_turn(WAITING))
    bench.ask("hi")
    assert bench.backend.decided == [("appr_1", "deny", "No person can be asked.", False)]


def test_the_person_at_the_terminal_decides():
    bench = ChatBench(tool_turn(WAITING), answers=["maybe", "a"])
    bench.ask("hi")
    assert bench.backend.decided == [("appr_1", "approve", None, True)]
    assert len(bench.reader.questions) == 2


def test_interrupt_while_a_person_is_asked_stops_the_answer():
    bench = ChatBench(tool_turn(WAITING), answers=[])

    async def interrupted(question):
        raise KeyboardInterrupt

    bench.reader.answer = interrupted
    with pytest.raises(KeyboardInterrupt):
        bench.ask("hi")
    assert "[stopped]" in bench.out and bench.backend.decided == []


def test_texts_of_one_answer_are_on_lines_of_their_own():
    def script(request):
        first, second = (list(spoken(said)(request)) for said in ("I look.", "It is 2."))
        yield from first[:-2]
        yield from (msgspec.structs.replace(e, part=1) for e in second if hasattr(e, "part"))
        yield from second[-2:]

    bench = ChatBench(script)
    bench.ask("hi")
    assert bench.out == "I look.\nIt is 2.\n"
    bench.ask("again")
    assert bench.requests[1].messages[1].parts == (Text("I look."), Text("It is 2."))


def test_a_conversation_with_tools_keeps_its_container_until_it_is_cleared():
    bench = ChatBench(spoken("ok"))
    bench.conversation.settings["tools"] = {"shell": True}
    bench.ask("a")
    bench.ask("b")
    first, second = bench.requests
    assert first.hosted == (ShellTool(),) and first.container == second.container is not None
    bench.command("/clear")
    bench.ask("c")
    assert bench.requests[2].container != first.container
    bench.command("/tools shell off")
    bench.ask("d")
    assert bench.requests[3].container is None and bench.requests[3].hosted == ()
