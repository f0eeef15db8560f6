"""Generates the help texts of docs/cli.md from the program.

`python -m penstock.cli.cli_page docs/cli.md` replaces the texts between the markers of the page; a
test checks that the page is current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from penstock.cli.completions import PROGRAM
from penstock.cli.main import app

BEGIN: Final = "<!-- The texts from here on are written by `python -m penstock.cli.cli_page`. -->"
END: Final = "<!-- The texts end here. -->"
WIDTH: Final = 100


def help_texts() -> str:
    """Return a Markdown section for each command, with its help as the program prints it."""
    root = typer.main.get_command(app)
    context = _context(root, PROGRAM, None)
    return "\n\n".join(_sections(root, context))


def with_help_texts(page: str) -> str:
    """Return `page` with the text between its markers replaced by the current help."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{help_texts()}\n\n{END}{after}"


def _sections(group: Any, context: Any) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = _context(command, name, context)
        yield f"## {inner.command_path}\n\n```text\n{command.get_help(inner).rstrip()}\n```"
        if hasattr(command, "list_commands"):
            yield from _sections(command, inner)


def _context(command: Any, name: str, parent: Any) -> Any:
    """Return the context of a command, whose help has a fixed width."""
    width = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    return command.context_class(command, info_name=name, parent=parent, **width)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_help_texts(target.read_text()))
