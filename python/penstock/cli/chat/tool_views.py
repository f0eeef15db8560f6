"""Text for the terminal that shows calls of server tools, their results and their files."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from penstock.dialog.server_tools import (
    CustomActivity,
    ProducedFile,
    PythonActivity,
    SearchActivity,
    ServerTool,
    ShellActivity,
    ToolActivity,
    ToolRun,
)

MAX_LINES: Final = 12
MAX_CHARACTERS: Final = 2000
QUESTION: Final = "Run it? y = yes, a = always in this session, n [message] = no: "
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """Return `text` with control characters shown as escapes. Keeps newlines and tabs."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def trimmed(text: str) -> str:
    """Return the beginning of `text`, without control characters, and how much is left out."""
    text = escaped(text.strip("\n"))
    lines = text[:MAX_CHARACTERS].splitlines()
    shown = "\n".join(lines[:MAX_LINES])
    left = len(text) - len(shown)
    return f"{shown}\n... {left:,} more characters" if left > 0 else shown


def input_text(activity: ToolActivity) -> str:
    """Return the whole input of a call: code, commands, query or arguments."""
    match activity:
        case PythonActivity():
            return escaped(activity.code)
        case ShellActivity():
            return escaped("\n".join(f"$ {command}" for command in activity.commands))
        case SearchActivity():
            return escaped(activity.query or activity.url or "")
        case CustomActivity():
            return escaped(activity.arguments)


def call_text(tool: ServerTool, activity: ToolActivity) -> str:
    """Return the lines that show a call as it starts."""
    origin = f" ({escaped(tool.server)})" if tool.server else ""
    return f"[{escaped(tool.label)}{origin}]\n{_indented(input_text(activity))}"


def result_text(run: ToolRun) -> str:
    """Return the lines that show the result of a call; long results are trimmed."""
    match run.activity:
        case PythonActivity() as done:
            texts = [done.stdout, done.stderr, done.result or "", done.exception or ""]
            texts.append(_count_text(len(done.images)))
            return _report(done.status, texts)
        case ShellActivity() as done:
            code = "" if done.exit_code in (0, None) else f"exit status {done.exit_code}"
            texts = [done.stdout, done.stderr, code, "timed out" if done.timed_out else ""]
            return _report(done.status, texts)
        case SearchActivity() as done:
            return _report(done.status, [f"{hit.title}  {hit.url}" for hit in done.hits])
        case CustomActivity() as done:
            return _report(done.status, [done.content])


def file_text(file: ProducedFile) -> str:
    """Return the line that shows a produced file, with its size and how to keep it."""
    name = escaped(file.name)
    if file.code is not None:
        return f"  no file {name}: {escaped(file.message or file.code)}"
    if file.text is None and file.data is None:
        return f"  file {name}, {size_text(file.size_bytes)}: too large to keep"
    return f"  file {name}, {size_text(file.size_bytes)}  (/save {name})"


def size_text(size: int) -> str:
    """Return a number of bytes for people, such as 1.5 MiB."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{size} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


async def read_decision(
    ask: Callable[[str], Awaitable[str]],
) -> tuple[Literal["approve", "deny"], str | None, bool]:
    """Ask for a decision until the answer is one. Returns (`approve` or `deny`, the message of a
    denial, whether to approve all later calls). The end of input is a denial."""
    while True:
        try:
            answer = (await ask(QUESTION)).strip()
        except EOFError:
            return "deny", None, False
        word, _, message = answer.partition(" ")
        match word.lower():
            case "y" | "yes":
                return "approve", None, False
            case "a" | "always":
                return "approve", None, True
            case "n" | "no":
                return "deny", message.strip() or None, False
            case _:
                pass


def _count_text(images: int) -> str:
    if images == 0:
        return ""
    return "1 image" if images == 1 else f"{images} images"


def _report(status: str, texts: list[str]) -> str:
    found = "\n".join(text.strip("\n") for text in texts if text.strip())
    body = trimmed(found) if found else "no output"
    prefix = "" if status in ("success", "") else f"{status}: "
    return _indented(prefix + body)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
