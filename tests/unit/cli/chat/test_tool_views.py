"""Calls of server tools in the terminal: their text, without control characters, and decisions."""

from __future__ import annotations

import asyncio

import pytest

from penstock.cli.chat.tool_views import (
    call_text,
    escaped,
    file_text,
    read_decision,
    result_text,
    size_text,
    trimmed,
)
from penstock.dialog import ToolCall, ToolResult
from penstock.dialog.server_tools import (
    CustomActivity,
    ProducedFile,
    PythonActivity,
    SearchActivity,
    SearchHit,
    ServerTool,
    ShellActivity,
    ToolRun,
)

TOOL = ServerTool("service_shell", "shell", "built_in", "Shell command")


def completed(activity):
    call = ToolCall("call_1", "service_shell", "{}")
    result = ToolResult("call_1", ())
    return result_text(ToolRun(round=0, call=call, tool=TOOL, activity=activity, result=result))


def test_a_call_shows_its_label_and_its_whole_input():
    shell = ShellActivity(commands=("ls", "rm \x1b[2J x"))
    assert call_text(TOOL, shell) == "[Shell command]\n  $ ls\n  $ rm \\x1b[2J x"
    mcp = ServerTool("a_b", "custom", "mcp", "b", "files\x07")
    assert call_text(mcp, CustomActivity(arguments='{"a":1}')) == '[b (files\\x07)]\n  {"a":1}'
    assert call_text(TOOL, PythonActivity(code="a\n\tb")).endswith("  a\n  \tb")
    assert call_text(TOOL, SearchActivity(query="x")).endswith("  x")


@pytest.mark.parametrize(
    ("activity", "shown"),
    [
        (PythonActivity(code="", status="success", stdout="a\n", result="3"), "  a\n  3"),
        (PythonActivity(code="", status="error", exception="E: x"), "  error: E: x"),
        (ShellActivity(commands=(), status="error", exit_code=2), "  error: exit status 2"),
        (ShellActivity(commands=(), status="success", exit_code=0), "  no output"),
        (ShellActivity(commands=(), status="timeout", timed_out=True), "  timeout: timed out"),
        (CustomActivity(arguments="", status="denied", content="no"), "  denied: no"),
        (
            SearchActivity(status="success", hits=(SearchHit(title="T", url="http://a"),)),
            "  T  http://a",
        ),
    ],
)
def test_a_result_is_shown_by_kind(activity, shown):
    assert completed(activity) == shown


def test_control_characters_are_escaped():
    assert escaped("a\x1b]0;x\x07\u202eb\tc\n") == "a\\x1b]0;x\\x07\\u202eb\tc\n"


def test_a_long_result_is_trimmed():
    assert trimmed("x" * 5000) == "x" * 2000 + "\n... 3,000 more characters"
    assert trimmed("a\n" * 20).endswith("a\n... 16 more characters")
    assert trimmed("short") == "short"


def produced(**given):
    return ProducedFile(
        id="f", name="a.txt", format="txt", mime_type="text/plain", created_at=0, tool="t",
        round=0, turn=0, container_id="c", **given,
    )  # fmt: skip


def test_a_file_is_shown_with_its_size():
    assert file_text(produced(size_bytes=3, text="abc")) == "  file a.txt, 3 bytes  (/save a.txt)"
    assert file_text(produced(size_bytes=2**40)).endswith("too large to keep")
    missing = produced(size_bytes=0, code="not_produced", message="not made")
    assert file_text(missing) == "  no file a.txt: not made"
    assert [size_text(n) for n in (1023, 1536, 2**20)] == ["1023 bytes", "1.5 KiB", "1.0 MiB"]


@pytest.mark.parametrize(
    ("answers", "decided"),
    [
        (["y"], ("approve", None, False)),
        (["what", "", "A"], ("approve", None, True)),
        (["n  not that one"], ("deny", "not that one", False)),
        (["no"], ("deny", None, False)),
    ],
)
def test_a_decision_is_asked_until_it_is_one(answers, decided):
    given = iter(answers)

    async def ask(_):
        return next(given)

    assert asyncio.run(read_decision(ask)) == decided


def test_the_end_of_input_denies():
    async def end(_):
        raise EOFError

    assert asyncio.run(read_decision(end)) == ("deny", None, False)
