"""The line editor of the terminal chat: keys, history, completion."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from penstock.cli.chat.commands import COMMANDS
from penstock.cli.chat.line_editor import CommandCompleter, LineEditor, open_history

WORDS = {"model": ["small", "large"], "setting": ["top_k", "top_p"], "tool": ["shell"]}


def typed(keys, history=None, lines=1):
    """Return the lines that the editor reads from the keys, and the hints that it shows."""
    hints = []

    async def read():
        editor = LineEditor(history, lambda kind: WORDS.get(kind, ()), hints.append)
        return [await editor.line() for _ in range(lines)]

    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        return asyncio.run(read()), hints


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("hello\r", "hello"),
        ("a\\\rb\r", "a\nb"),
        ("a\x1b\rb\r", "a\nb"),
        ("\x1b[200~def f():\n    pass\n\x1b[201~\r", "def f():\n    pass"),
        ("helo\x1b[Dl\r", "hello"),
        ("/te\t0.5\r", "/temperature 0.5"),
        ("/set top_k\t5\r", "/set top_k5"),
    ],
)
def test_keys_make_lines(keys, line):
    assert typed(keys) == ([line], [])


def test_interrupt_drops_the_line_and_says_how_to_leave():
    assert typed("half\x03rest\r", lines=2) == (["", "rest"], ["Ctrl-D or /exit leaves"])


def test_the_end_of_input_leaves():
    with pytest.raises(EOFError):
        typed("\x04")


def test_history_lasts_and_belongs_to_the_user_alone(tmp_path):
    path = tmp_path / "state" / "history"
    typed("first\rtwo\\\rlines\r", path, lines=2)
    assert typed("\x1b[A\r", path) == (["two\nlines"], [])
    assert typed("\x1b[A\x1b[A\x1b[A\r", path)[0] == ["first"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_history_that_cannot_be_written_is_left_out(tmp_path):
    (tmp_path / "file").write_text("")
    assert typed("hello\r", tmp_path / "file" / "history") == (["hello"], [])
    history = open_history(tmp_path / "history")
    (tmp_path / "history").unlink()
    (tmp_path / "history").mkdir()
    history.store_string("hello")


def completions(text):
    completer = CommandCompleter(lambda kind: WORDS.get(kind, ()))
    found = completer.get_completions(Document(text, len(text)), CompleteEvent())
    return [text[: len(text) + one.start_position] + one.text for one in found]


def test_commands_and_their_arguments_are_completed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").write_text("")
    assert completions("/sa") == ["/save "]
    assert completions("/") == [f"{command.name} " for command in COMMANDS]
    assert completions("/model s") == ["/model small"]
    assert completions("/set top_") == ["/set top_k", "/set top_p"]
    assert completions("/image pho") == ["/image photo.png"]
    assert completions("/load ph") == ["/load photo.png"]
    assert completions("/exit x") == completions("hello") == completions("/no x") == []


def test_the_command_line_loads_neither_the_editor_nor_the_chat():
    code = "import sys, penstock.cli.main; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "penstock.cli.run" in loaded
    assert not loaded & {"prompt_toolkit", "httpx", "rich", "penstock.cli.chat.session"}
