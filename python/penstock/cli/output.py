"""The look of results: plain tables for people, one JSON document for scripts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer

JSON_OPTION: Final[Any] = typer.Option("--json", help="Print the result as one JSON document.")
MARKS: Final = {"ok": "green", "yes": "green", "warn": "yellow", "error": "red", "broken": "red"}
"""Words that a terminal shows in a colour."""
PIPE_WIDTH: Final = 1000
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86400


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    import msgspec

    typer.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table on standard output. A pipe gets one line per row, whatever its length.

    `columns`: their titles; the cells of the last one are wrapped if the terminal is too narrow.
    `numbers`: the columns that are aligned at the right.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in columns:
        last = title == columns[-1]
        justify: Any = "right" if title in numbers else "left"
        table.add_column(title, justify=justify, no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, MARKS.get(cell, "")) for cell in row))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def size_text(size_bytes: float) -> str:
    """Return a number of bytes in a unit that leaves at most four digits: `94 MiB`."""
    step = 0
    while size_bytes >= 1000 and step < len(UNITS) - 1:
        size_bytes, step = size_bytes / 1024, step + 1
    digits = 0 if step == 0 or size_bytes >= 10 else 1
    return f"{size_bytes:.{digits}f} {UNITS[step]}"


def age_text(seconds: float) -> str:
    """Return a time span in its largest unit: `3 days ago`."""
    for size, unit in ((DAY_S, "day"), (HOUR_S, "hour"), (MINUTE_S, "minute")):
        count = int(seconds // size)
        if count:
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "now"
