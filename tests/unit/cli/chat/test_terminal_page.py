"""docs/terminal.md lists the commands and settings of the program."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.chat.chat_settings import FIELDS, range_of
from penstock.cli.chat.commands import help_text

PAGE = Path(__file__).resolve().parents[4] / "docs" / "terminal.md"


def test_the_page_has_the_help_and_the_settings_of_the_program():
    page = PAGE.read_text()
    assert "\n".join(f"    {line}" for line in help_text().splitlines()) in page
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{name}` | {range_of(name)} |" for name in FIELDS]
