"""Answers in Markdown, rendered while they stream."""

from __future__ import annotations

import asyncio
import io
import re

import pytest
from rich.console import Console

from penstock.cli.chat.answer_view import PlainView
from penstock.cli.chat.markdown_view import MarkdownView, UnfinishedBlock
from penstock.cli.chat.screen import Screen
from tests.support.terminal_screen import visible_lines

ANSWER = """\
# Foxes

Some *facts* about a [fox](https://fox.example):

- red
- quick

| Colour | Count |
|---|---|
| red | 2 |
| white | 11 |

> A quote.

1. one

```python
def count(foxes):
    return `foxes`
```

Done."""
SHOWN = """\
Foxes

Some facts about a fox
(https://fox.example):

 • red
 • quick

 Colour  Count
 -
 red     2
 white   11

▌ A quote.

 1 one

 def count(foxes):
     return `foxes`

Done.
"""
# Versions of rich draw the rule under the head of a table with other characters.
RULE = re.compile("[\u2500-\u257f]+")


def rendered(pieces, environ=None):
    """Return the output for an answer in pieces. The unfinished block is shown after each."""
    out = io.StringIO()
    console = Console(file=out, width=30, height=20, force_terminal=True, _environ=environ or {})

    async def show():
        view = MarkdownView(console, refresh_s=0)
        view.begin_text()
        for piece in pieces:
            view.text(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        view.end()

    asyncio.run(show())
    return out.getvalue()


@pytest.mark.parametrize("size", [1, 7, len(ANSWER)])
def test_an_answer_looks_the_same_in_whatever_pieces_it_comes(size):
    pieces = [ANSWER[start : start + size] for start in range(0, len(ANSWER), size)]
    shown = "\n".join(visible_lines(rendered(pieces))).rstrip()
    assert RULE.sub("-", shown) == SHOWN.rstrip()


def test_an_answer_that_is_stopped_shows_all_its_text():
    out = io.StringIO()

    async def show():
        view = MarkdownView(Console(file=out, width=30, force_terminal=True, _environ={}))
        view.text("One.\n\nTw")
        view.stop()

    asyncio.run(show())
    assert visible_lines(out.getvalue())[:3] == ["One.", "", "Tw"]


def test_an_answer_cannot_control_the_terminal():
    said = "a\x1b[2Jb `\x1b]0;title\x07` \x9b1m [x](javascript:\x1b[3J)"
    shown = rendered([said])
    assert "\x1b[2J" not in shown and "\x1b]" not in shown and "\x9b" not in shown
    assert "\x1b[3J" not in shown and "\x07" not in shown


def test_the_address_of_a_link_is_visible():
    shown = "".join(visible_lines(rendered(["[bank](https://evil.example)"])))
    assert "https://evil.example" in shown


def test_no_color_leaves_no_colours():
    code = "```python\nx = 'a'\n```\n"
    colours = re.compile(r"\x1b\[(?:\d+;)*[349][0-8](?:;\d+)*m")
    assert colours.search(rendered([code], {"TERM": "xterm-256color"}))
    assert not colours.search(rendered([code], {"TERM": "xterm-256color", "NO_COLOR": "1"}))


def test_an_unfinished_block_that_is_taller_than_the_terminal_shows_its_end():
    block = UnfinishedBlock()
    block.text = "```\n" + "\n".join(f"line {number}" for number in range(50))
    console = Console(file=io.StringIO(), width=30, height=10, force_terminal=True, _environ={})
    lines = ["".join(part.text for part in line) for line in console.render_lines(block)]
    assert len(lines) <= 10 and "line 49" in "".join(lines) and "line 5 " not in "".join(lines)


@pytest.mark.parametrize(
    ("console", "renders", "kind"),
    [
        ({"force_terminal": True}, True, MarkdownView),
        ({"force_terminal": True}, False, PlainView),
        ({"force_terminal": False}, True, PlainView),
        ({"force_terminal": True, "_environ": {"TERM": "dumb"}}, True, PlainView),
    ],
)
def test_markdown_is_rendered_on_terminals_only(console, renders, kind):
    screen = Screen(Console(**{"_environ": {}, **console}), renders_markdown=renders)
    assert type(screen.answer_view()) is kind
