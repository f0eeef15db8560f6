"""The terminal chat with a server whose tools run: calls, approvals, files and history."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.screen import Screen
from penstock.cli.chat.server_backend import connect
from penstock.cli.chat.terminal_chat import Chat
from tests.support.servers.agent_server import PYTHON_AND_SHELL, agent_server, python
from tests.support.terminal_chats import ScriptedReader

ASKING = msgspec.structs.replace(PYTHON_AND_SHELL, agent_permission="ask")
WRITES = 'open("a.txt", "w").write("abc"); print("made")'


async def test_a_person_approves_a_call_and_saves_its_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [python(WRITES, "a.txt"), "A file.", "Done."]
    async with agent_server(texts, ASKING) as server:
        backend = await connect(server.serving.url, None)
        lines = ["/tools code on", "make a file", "/save a.txt", "sure?"]
        reader, out = ScriptedReader(lines, ["y"]), io.StringIO()
        screen = Screen(Console(file=out, width=100, _environ={}))
        await Chat(backend, Conversation(), reader, screen).talk()
        await backend.close()
    shown = out.getvalue()
    assert "[Python code]" in shown and "open(" in shown and "  made\n" in shown
    assert "A file.\n" in shown and shown.endswith("Done.\n")
    assert len(reader.questions) == 1
    assert (tmp_path / "a.txt").read_text() == "abc"
    assert "made" in server.prompts[-1]


async def test_a_denied_call_does_not_run():
    async with agent_server([python("print(271 * 829)"), "No."], ASKING) as server:
        backend = await connect(server.serving.url, None)
        conversation, out = Conversation({"tools": {"code": True}}), io.StringIO()
        screen = Screen(Console(file=out, width=100, _environ={}))
        reader = ScriptedReader(["count"], ["n not now"])
        await Chat(backend, conversation, reader, screen).talk()
        await backend.close()
    assert "224659" not in out.getvalue() and "not now" in server.prompts[1]
