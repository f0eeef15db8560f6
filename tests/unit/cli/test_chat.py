"""The chat in the terminal: commands, streaming, interrupts."""

from __future__ import annotations

import asyncio
import io
import os
import signal

import pytest
from rich.console import Console

from penstock.base.errors import Unavailable
from penstock.cli.chat_state import Conversation, ExitChat
from penstock.cli.terminal_chat import Chat
from penstock.dialog import (
    Message,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunFailed,
    RunStarted,
    Text,
)
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
