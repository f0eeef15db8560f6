"""The look of the help: plain text in sections, with examples. Also the one line for wrong usage.

Plain text, because rich's boxes take columns from the texts and double the time of `--help`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

OTHER_OPTIONS: Final = "Options"
OTHER_COMMANDS: Final = "Commands"
TEXT_DEFAULT: Final = re.compile(r"\[default: \((.*?)\)\]")
MAX_WIDTH: Final = 110
MAX_LEFT: Final = 30
GAP: Final = 2
SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": MAX_WIDTH}
# typer exports only a subclass of click's errors.
CLICK_ERRORS: Final[tuple[type[Any], ...]] = typer.BadParameter.__mro__[1:3]
USAGE_ERROR, CLICK_ERROR = CLICK_ERRORS

Row = tuple[str, str]


class PlainCommand(TyperCommand):
    """A command with plain help. Its epilog is the examples, one a line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _write_help(self, ctx, formatter, [*_arguments(self, ctx), *_options(self, ctx)])


class PlainGroup(TyperGroup):
    """A group of commands with plain help. Its epilog is the examples, one a line."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _write_help(self, ctx, formatter, [*_commands(self, ctx), *_options(self, ctx)])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and exit. Wrong usage is one line on standard error and status 2."""
        try:
            status = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            print(file=sys.stderr)
            sys.exit(130)
        except CLICK_ERROR as error:
            print(usage_line(error), file=sys.stderr)
            sys.exit(2 if isinstance(error, USAGE_ERROR) else 1)
        sys.exit(status)


def usage_line(error: Any) -> str:
    """Return the line for an error of click: the command, what is wrong, and where to read on. For
    a group without a command, the message is the help of the group."""
    context = getattr(error, "ctx", None)
    path = "penstock" if context is None else context.command_path
    message = str(error.format_message()).rstrip(".")
    if "\n\n" in message:
        return message
    message = " ".join(message.split())
    return f"{path}: {message[:1].lower()}{message[1:]}; see `{path} --help`"


def _write_help(
    command: Any, ctx: Any, formatter: Any, sections: Sequence[tuple[str, list[Row]]]
) -> None:
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    if command.epilog:
        with formatter.section("Examples"):
            for line in command.epilog.splitlines():
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
    for title, rows in sections:
        with formatter.section(title):
            formatter.write("".join(_lines(rows, formatter.current_indent, formatter.width)))


def _lines(rows: Sequence[Row], indent: int, width: int) -> Iterator[str]:
    """Return the lines of two columns. A long left cell has a line for itself. Lines do not break
    at hyphens, as click's do, because that would break the names of options."""
    column = min(max(len(left) for left, _ in rows), MAX_LEFT) + GAP
    for left, right in rows:
        texts = textwrap.wrap(right, max(width - indent - column, 20), break_on_hyphens=False)
        if len(left) + GAP > column:
            texts = ["", *texts]
        yield f"{'':{indent}}{left:{column}}{texts[0] if texts else ''}".rstrip() + "\n"
        for text in texts[1:]:
            yield f"{'':{indent + column}}{text}\n"


def _arguments(command: Any, ctx: Any) -> Iterator[tuple[str, list[Row]]]:
    rows = [_record(p, ctx) for p in command.params if p.param_type_name == "argument"]
    if any(rows):
        yield "Arguments", [row for row in rows if row]


def _options(command: Any, ctx: Any) -> list[tuple[str, list[Row]]]:
    """Return the options by section; those without a section come last."""
    sections: dict[str, list[Row]] = {}
    for parameter in command.get_params(ctx):
        row = _record(parameter, ctx)
        if parameter.param_type_name == "option" and row:
            title = getattr(parameter, "rich_help_panel", None) or OTHER_OPTIONS
            sections.setdefault(title, []).append(row)
    others = sections.pop(OTHER_OPTIONS, [])
    return [*sections.items(), (OTHER_OPTIONS, others)]


def _record(parameter: Any, ctx: Any) -> Row | None:
    """Return the name and the help of a parameter. typer puts defaults that are texts in
    parentheses, which this removes."""
    record: Row | None = parameter.get_help_record(ctx)
    return record and (record[0], TEXT_DEFAULT.sub(r"[default: \1]", record[1]))


def _commands(group: Any, ctx: Any) -> list[tuple[str, list[Row]]]:
    """Return the commands by section, each with its one-line summary."""
    sections: dict[str, list[Row]] = {}
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if not command.hidden:
            title = getattr(command, "rich_help_panel", None) or OTHER_COMMANDS
            sections.setdefault(title, []).append((name, summary(command)))
    return list(sections.items())


def summary(command: Any) -> str:
    """Return the first sentence of a command's help, without its full stop."""
    paragraph = " ".join(str(command.help or "").strip().split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")
