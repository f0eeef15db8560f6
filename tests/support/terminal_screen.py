"""A terminal that interprets the few control sequences that rendered answers use."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


def visible_lines(output: str) -> list[str]:
    """Return the lines that a tall terminal shows after `output`. Raises AssertionError for a
    control sequence that is not known."""
    lines, row, column = [""], 0, 0
    position = 0
    while position < len(output):
        found = _TOKEN.match(output, position)
        assert found is not None, f"unknown control sequence {output[position : position + 8]!r}"
        position = found.end()
        parameters, command, newline, text = found.groups()
        if text:
            kept = lines[row].ljust(column)
            lines[row] = kept[:column] + text + kept[column + len(text) :]
            column += len(text)
        elif newline == "\r":
            column = 0
        elif newline == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif command == "A":
            row -= int(parameters or 1)
        elif command == "K":
            lines[row] = ""
        else:
            assert command in "mlh", f"unknown control sequence {found[0]!r}"
    return [line.rstrip() for line in lines]
