"""The commands of the terminal chat: one table of names, arguments, help and functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from penstock.base.errors import InvalidRequest, ModelError, ServiceError
from penstock.cli.chat import file_commands, model_commands, setting_commands, turn_commands
from penstock.cli.chat.command_context import AnswerAgain, CommandContext, Leave, Outcome

Completes: TypeAlias = Literal["", "file", "model", "adapter", "setting", "tool"]


@dataclass(frozen=True)
class Command:
    """A command.

    `name`: with its slash.
    `argument`: for the help, such as "[TEXT]".
    `help`: one line.
    `run`: gets the chat and the text after the name. Raises ServiceError, ModelError, OSError.
    `completes`: the kind of its argument, for the Tab key.
    """

    name: str
    argument: str
    help: str
    run: Callable[[CommandContext, str], Awaitable[Outcome]]
    completes: Completes = ""


async def _help(_: CommandContext, argument: str) -> Outcome:
    return help_text()


async def _exit(_: CommandContext, argument: str) -> Outcome:
    return Leave()


COMMANDS: Final = (
    Command("/help", "", "show this list", _help),
    Command("/exit", "", "leave (also Ctrl-D)", _exit),
    Command("/clear", "", "start a new conversation", turn_commands.clear),
    Command("/retry", "", "answer the last question again", turn_commands.retry),
    Command("/undo", "", "forget the last question and its answer", turn_commands.undo),
    Command("/copy", "", "copy the last answer to the clipboard", turn_commands.copy),
    Command("/stats", "", "show tokens and speed of the answers", turn_commands.stats),
    Command(
        "/system",
        "[TEXT]",
        "set the system message; without TEXT, remove it",
        setting_commands.system,
    ),
    Command(
        "/set",
        "[NAME [VALUE]]",
        "show all settings, or change one (VALUE default: reset)",
        setting_commands.set_field,
        "setting",
    ),
    Command(
        "/temperature",
        "[X]",
        "0 to 2; without X, the model's default",
        setting_commands.setter_of("temperature"),
    ),
    Command(
        "/topk",
        "[N]",
        "sample from the N likeliest tokens; 0: from all",
        setting_commands.setter_of("top_k"),
    ),
    Command(
        "/topp",
        "[X]",
        "sample from the likeliest tokens of total probability X",
        setting_commands.setter_of("top_p"),
    ),
    Command("/model", "[NAME]", "list the models, or switch", model_commands.model, "model"),
    Command(
        "/adapter",
        "[ALIAS]",
        "use a LoRA adapter; without ALIAS, none",
        model_commands.adapter,
        "adapter",
    ),
    Command(
        "/tools",
        "[NAME on|off]",
        "show the tools, or switch one on or off",
        model_commands.tools,
        "tool",
    ),
    Command(
        "/attach",
        "FILE",
        "send media or a text with your next line",
        file_commands.attacher_of(None),
        "file",
    ),
    Command("/image", "FILE", "attach an image", file_commands.attacher_of("image"), "file"),
    Command("/audio", "FILE", "attach a recording", file_commands.attacher_of("audio"), "file"),
    Command("/video", "FILE", "attach a video", file_commands.attacher_of("video"), "file"),
    Command(
        "/save",
        "FILE",
        "save the chat, or a file that a tool made",
        file_commands.save,
        "file",
    ),
    Command("/load", "FILE", "load a chat, also one of the web page", file_commands.load, "file"),
)
KEYS: Final = (
    ("Alt-Enter", "begin a new line; so does Enter after a backslash"),
    ("Up, Ctrl-R", "earlier lines; search them"),
    ("Ctrl-C", "stop the answer"),
)
_BY_NAME: Final = {command.name: command for command in COMMANDS}


def command_of(name: str) -> Command | None:
    """Return the command called `name`, or None."""
    return _BY_NAME.get(name)


def help_text() -> str:
    """Return the list of the commands and keys."""
    rows = [(f"{command.name} {command.argument}".rstrip(), command.help) for command in COMMANDS]
    width = max(len(usage) for usage, _ in (*rows, *KEYS))
    lines = [f"{usage:<{width}}  {help}" for usage, help in (*rows, *KEYS)]
    return "\n".join(lines)


async def run_command(context: CommandContext, line: str) -> Outcome:
    """Run a command line that starts with a slash. An error is a text too."""
    name, _, argument = line.strip().partition(" ")
    command = _BY_NAME.get(name)
    if command is None:
        return f"There is no command {name}; /help lists the commands."
    try:
        return await command.run(context, argument.strip())
    except InvalidRequest as error:
        return error.message
    except (ServiceError, ModelError) as error:
        return str(error)
    except OSError as error:
        return f"{error.filename or argument}: {error.strerror or error}"


__all__ = ["COMMANDS", "AnswerAgain", "Command", "Leave", "command_of", "help_text", "run_command"]
