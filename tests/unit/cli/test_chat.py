"""The chat in the terminal: commands, streaming, interrupts."""

from __future__ import annotations

import asyncio
import io
import os
import signal

import msgspec
import pytest
from rich.console import Console

from penstock.base.errors import Unavailable
from penstock.cli.chat_state import Conversation, ExitChat
from penstock.cli.run import attached_media
from penstock.cli.terminal_chat import Chat
from penstock.config import SettingsError
from penstock.dialog import (
    ApprovalRequired,
    FileProduced,
    Image,
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
from tests.support.media.small_processor import png
from tests.support.servers.http_server import ScriptedLoop, spoken


def chat_over(script):
    loop = asyncio.new_event_loop()
    agent, conversation = ScriptedLoop(script), Conversation()
    out = io.StringIO()
    return Chat(loop, agent, conversation, Console(file=out)), agent, conversation, out


def test_answer_is_printed_as_it_arrives_and_kept_in_the_dialog():
    chat, agent, _, out = chat_over(spoken("Hel", "lo [bold]", "!"))
    chat.answer_once("hi")
    chat.answer_once("again")
    assert out.getvalue() == "Hello [bold]!\n" * 2
    assert [m.role for m in agent.requests[1].messages] == ["user", "assistant", "user"]
    assert agent.requests[1].messages[1] == Message("assistant", (Text("Hello [bold]!"),))


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_is_printed_unchanged(terminal):
    """A Makefile contains tabs, a settings file may contain `:key:`, and lines may be long."""
    said = ["a\tb\n", "\tc ", ":key: [bold]x[/bold] https://x.example ", "y" * 300, "👩\u200d🚀"]
    chat, _, _, out = chat_over(spoken(*said))
    chat._console = Console(file=out, force_terminal=terminal, width=40)
    chat.answer_once("hi")
    assert out.getvalue() == "".join(said) + "\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_cannot_control_the_terminal(terminal):
    said = "a\x1b[2J\x9b1mb\r\x07\x08c"
    chat, _, conversation, out = chat_over(spoken(said))
    chat._console = Console(file=out, force_terminal=terminal)
    chat.answer_once("hi")
    assert out.getvalue() == ("a[2J1mbc\n" if terminal else said + "\n")
    assert conversation.messages[1] == Message("assistant", (Text(said),))


def test_attached_files_go_with_the_next_line_and_stay_in_the_dialog(tmp_path):
    photo = tmp_path / "photo.png"
    photo.write_bytes(png(8, 8))
    chat, agent, conversation, _ = chat_over(spoken("A square."))
    assert conversation.command(f"/attach {photo}") == "photo.png goes with your next line."
    chat.answer_once("What?")
    chat.answer_once("Sure?")
    asked = Message("user", (Image(data=png(8, 8)), Text("What?")))
    assert agent.requests[0].messages == (asked,)
    assert agent.requests[1].messages[0] == asked
    assert agent.requests[1].messages[2] == Message("user", (Text("Sure?"),))


def test_files_that_cannot_be_attached_are_explained(tmp_path):
    _, _, conversation, _ = chat_over(spoken("x"))
    assert "No such file" in conversation.command(f"/attach {tmp_path / 'none.png'}")
    (tmp_path / "notes.txt").write_text("hi")
    shown = conversation.command(f"/attach {tmp_path / 'notes.txt'}")
    assert "not an image, a recording or a video" in shown


def test_media_of_the_command_line_go_with_the_first_line(tmp_path):
    (tmp_path / "photo.png").write_bytes(png(8, 8))
    media = attached_media({"image": [tmp_path / "photo.png"], "audio": None})
    assert Conversation(media=media).request("What?").messages == (
        Message("user", (Image(data=png(8, 8)), Text("What?"))),
    )
    with pytest.raises(SettingsError, match=r"--audio: .*none\.wav: No such file"):
        attached_media({"audio": [tmp_path / "none.wav"]})


def test_interrupt_stops_the_answer_and_keeps_its_text():
    def script(request):
        steps = list(spoken("Hel")(request))
        yield from steps[:3]
        os.kill(os.getpid(), signal.SIGINT)
        yield asyncio.Event()  # never set

    chat, agent, conversation, out = chat_over(script)
    with pytest.raises(KeyboardInterrupt):  # `main` turns it into exit status 130
        chat.answer_once("hi")
    assert "stopped" in out.getvalue() and agent.running == 0
    assert conversation.messages[1] == Message("assistant", (Text("Hel"),))


def test_chat_continues_after_an_interrupted_answer(monkeypatch):
    def script(request):
        os.kill(os.getpid(), signal.SIGINT)
        yield asyncio.Event()  # never set

    chat, agent, _, out = chat_over(script)
    lines = iter(["hi", "/exit", "never read"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    chat.talk("model")
    assert "stopped" in out.getvalue() and len(agent.requests) == 1
    assert next(lines) == "never read"


def test_chat_reports_a_failed_answer_and_continues(monkeypatch):
    failed = RunFailed(503, "server_error", "unavailable", "the engine is restarting")
    chat, agent, _, out = chat_over(lambda r: iter([RunStarted("m", 0, 1), failed]))
    lines = iter(["hi", "/temperature 0.5", "hi", "/exit", "never read"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    chat.talk("model")
    assert out.getvalue().count("the engine is restarting") == 2
    assert agent.requests[1].sampling.temperature == 0.5
    assert next(lines) == "never read"


def test_end_of_input_leaves(monkeypatch):
    chat, *_, out = chat_over(spoken())

    def end(prompt):
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    chat.talk("a [/b] model :key:")
    assert out.getvalue().startswith("a [/b] model :key:  /help lists the commands")


def test_reasoning_is_printed_apart_from_the_answer():
    def script(request):
        yield RunStarted("m", 0, 1)
        yield PartStarted(0, 0, "reasoning")
        yield ReasoningDelta(0, 0, "Two?")
        yield PartEnded(0, 0, Reasoning("Two?"))
        yield from list(spoken("Two.")(request))[1:]

    chat, _, conversation, out = chat_over(script)
    chat.answer_once("1 + 1?")
    assert out.getvalue() == "Two?\n\nTwo.\n"
    assert conversation.messages[1] == Message("assistant", (Text("Two."),))


def test_the_line_editor_knows_the_prompt(monkeypatch):
    """readline redraws the whole line (Ctrl-U, history) and would lose a prompt that it does not
    know."""
    chat, *_, out = chat_over(spoken())
    prompts = []
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or "/exit")
    chat.talk("model")
    assert prompts == ["> "] and "> " not in out.getvalue()


def test_redirected_standard_output_holds_answers_only(monkeypatch):
    def script(request):
        if len(agent.requests) == 2:
            yield Unavailable("not now")
        yield from spoken("Hel", "lo")(request)

    chat, agent, conversation, out = chat_over(script)
    notes, prompts = io.StringIO(), []
    chat = Chat(chat._loop, agent, conversation, Console(file=out), Console(file=notes), "")
    lines = iter(["hi", "/clear", "again"])

    def ask(prompt):
        prompts.append(prompt)
        return next(lines, None) or end()

    def end():
        raise EOFError

    monkeypatch.setattr("builtins.input", ask)
    chat.talk("model")
    assert out.getvalue() == "Hello\n" and set(prompts) == {""}
    assert all(
        told in notes.getvalue() for told in ("/help lists", "Conversation cleared.", "not now")
    )


def test_single_answer_fails_with_its_error():
    chat, *_ = chat_over(lambda r: iter([Unavailable("not now")]))
    with pytest.raises(Unavailable):
        chat.answer_once("hi")


def test_commands_set_parameters_of_the_next_request():
    conversation = Conversation()
    for line in ("/system Be brief.", "/temperature 0.3", "/topk 40", "/topp 0.9", "/adapter sql"):
        conversation.command(line)
    request = conversation.request("hi")
    assert request.messages[0] == Message("system", (Text("Be brief."),))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.3, 40, 0.9)
    assert conversation.request("hi").adapter == "sql"
    for line in ("/system", "/temperature", "/topk", "/topp", "/adapter"):
        conversation.command(line)
    request = conversation.request("hi")
    assert len(request.messages) == 1
    assert request.sampling == Conversation().sampling and request.adapter is None


def test_top_k_of_0_disables_the_models_default():
    conversation = Conversation()
    assert conversation.command("/topk 0") == "top_k: 0"
    assert conversation.request("hi").sampling.top_k == 0


@pytest.mark.parametrize(
    "line", ["/temperature x", "/temperature 3", "/topk -1", "/topk 1.5", "/topp nan", "/no"]
)
def test_wrong_command_is_reported_and_changes_nothing(line):
    conversation = Conversation()
    assert conversation.command(line)
    assert conversation.sampling == Conversation().sampling


def test_clear_forgets_and_exit_leaves():
    conversation = Conversation(system="s")
    conversation.keep("a", "b")
    conversation.command("/clear")
    assert conversation.messages == [] and conversation.system == "s"
    assert "/topp" in conversation.command("/help")
    with pytest.raises(ExitChat):
        conversation.command("/exit")


SHELL = ServerTool("service_shell", "shell", "built_in", "Shell command")
ACTIVITY = ShellActivity(commands=("ls",))
CALL = ToolCall("call_1", "service_shell", "{}")


def tool_turn(*between):
    """Return a script of a turn with a shell call, which waits if `between` says so."""

    def script(request):
        first, *rest = spoken("done")(request)
        done = ShellActivity(commands=("ls",), status="success", stdout="a\x1b[2J", exit_code=0)
        run = ToolRun(
            round=0, call=CALL, tool=SHELL, activity=done, result=ToolResult("call_1", ())
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
        yield from rest

    return script


def test_a_call_its_result_and_its_files_are_notes():
    chat, _, _, out = chat_over(tool_turn())
    notes = io.StringIO()
    chat._notes = Console(file=notes, width=80)
    chat.answer_once("hi")
    assert out.getvalue() == "done\n"
    assert "[Shell command]\n  $ ls\n  a\\x1b[2J\n" in notes.getvalue()
    assert "file sub/a.txt, 3 bytes  (/save sub/a.txt)" in notes.getvalue()


def test_a_file_is_written_only_on_request_and_replaces_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    chat, _, _, out = chat_over(tool_turn())
    lines = iter(["hi", "/save other", "/save sub/a.txt", "/save sub/a.txt", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    chat.talk("model")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "abc"
    shown = out.getvalue()
    assert "No tool made a file 'other'." in shown and "Wrote a.txt." in shown
    assert "a.txt: File exists" in shown


WAITING = ApprovalRequired(0, 0, "appr_1", "s", 0, SHELL, "{}")


def test_without_a_terminal_an_approval_is_denied():
    chat, *_ = chat_over(tool_turn(WAITING))
    decided = []
    chat._decide = lambda *given, **named: decided.append((given, named))
    chat.answer_once("hi")
    assert decided == [(("appr_1", "deny", "No person can be asked."), {})]


def test_the_person_at_the_terminal_decides(monkeypatch):
    chat, *_ = chat_over(tool_turn(WAITING))
    chat._notes = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "a")
    decided = []
    chat._decide = lambda *given, **named: decided.append((given, named))
    chat.answer_once("hi")
    assert decided == [(("appr_1", "approve", None), {"remember": True})]


def test_texts_of_one_answer_are_on_lines_of_their_own():
    def script(request):
        first, second = (list(spoken(said)(request)) for said in ("I look.", "It is 2."))
        yield from first[:-2]
        yield from (
            msgspec.structs.replace(event, part=1) for event in second if hasattr(event, "part")
        )
        yield from second[-2:]

    chat, _, conversation, out = chat_over(script)
    chat.answer_once("hi")
    assert out.getvalue() == "I look.\nIt is 2.\n"
    assert conversation.messages[1] == Message("assistant", (Text("I look.\n\nIt is 2."),))


def test_a_conversation_with_tools_keeps_its_container_until_it_is_cleared():
    conversation = Conversation(hosted=(ShellTool(),))
    first, second = conversation.request("a"), conversation.request("b")
    assert first.hosted == (ShellTool(),) and first.container == second.container is not None
    conversation.command("/clear")
    assert conversation.request("c").container != first.container
    assert Conversation().request("a").container is None
