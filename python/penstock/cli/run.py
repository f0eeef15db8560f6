"""`penstock run`: a terminal chat with the engine in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from penstock.cli.agent_setting_options import LOCAL_TOOL_OPTIONS
from penstock.cli.media_setting_options import MEDIA_OPTIONS
from penstock.cli.settings_parameters import CommandSettings, with_settings
from penstock.config import AgentSettings, SettingsError

if TYPE_CHECKING:
    from penstock.dialog import HostedTool, Part

PANEL = "Answers"


def _option(*flags: str, help: str, **details: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=PANEL, **details)


@with_settings((*LOCAL_TOOL_OPTIONS, *MEDIA_OPTIONS))
def run(
    parsed: CommandSettings,
    text: Annotated[
        Optional[str],  # noqa: UP045
        _option("-i", "--input", help="Answer this prompt and exit."),
    ] = None,
    system: Annotated[
        Optional[str],  # noqa: UP045
        _option("--system", help="System message."),
    ] = None,
    image: Annotated[
        Optional[list[Path]],  # noqa: UP045
        _option("--image", help="Show the model an image; may be repeated.", metavar="FILE"),
    ] = None,
    audio: Annotated[
        Optional[list[Path]],  # noqa: UP045
        _option("--audio", help="Play the model a recording; may be repeated.", metavar="FILE"),
    ] = None,
    video: Annotated[
        Optional[list[Path]],  # noqa: UP045
        _option("--video", help="Show the model a video; may be repeated.", metavar="FILE"),
    ] = None,
    max_tokens: Annotated[
        Optional[int],  # noqa: UP045
        _option("--max-tokens", help="Maximum length of an answer, in tokens.", min=1, metavar="N"),
    ] = None,
    thinking: Annotated[
        Optional[bool],  # noqa: UP045
        _option(
            "--thinking/--no-thinking",
            help="Switch the model's reasoning on or off.",
            show_default="the template's",
        ),
    ] = None,
    adapter: Annotated[
        Optional[str],  # noqa: UP045
        _option("--adapter", help="Alias of the LoRA adapter to use; --lora loads it."),
    ] = None,
) -> None:
    """Chat with a model in the terminal. /help lists the commands."""
    from rich.console import Console

    from penstock.cli.chat_state import Conversation
    from penstock.cli.local_model import local_model
    from penstock.cli.terminal_chat import Chat
    from penstock.dialog import Limits, ReasoningPolicy

    engine_settings = parsed.one_engine()
    tools = parsed.tools()
    hosted = hosted_tools(tools)
    agent = tools if hosted or tools.mcp_config is not None else None
    attached = attached_media({"image": image, "audio": audio, "video": video})
    conversation = Conversation(
        system=system,
        limits=Limits(max_tokens=max_tokens, truncate=True),
        reasoning=ReasoningPolicy(enabled=thinking),
        adapter=adapter,
        hosted=hosted,
        media=attached,
    )
    with local_model(engine_settings, agent, parsed.media()) as (loop, model):
        console = Console()
        if console.is_terminal and sys.stdin.isatty():
            chat = Chat(loop, model.agent, conversation, console, decide=model.approvals.decide)
        else:  # input or output is not a terminal
            chat = Chat(
                loop,
                model.agent,
                conversation,
                console,
                Console(stderr=True),
                "",
                model.approvals.decide,
            )
        if text is None and model.transcribes and attached:
            text = ""
        if text is not None:
            chat.answer_once(text)
        else:
            chat.talk(model.name)


def attached_media(files: Mapping[str, Sequence[Path] | None]) -> tuple[Part, ...]:
    """Return the parts of the files, given by their kinds: "image", "audio", "video". Raises
    SettingsError for a file that cannot be read."""
    from penstock.llm.content import content_parts

    named = [
        ({"type": kind, kind: path}, path) for kind, paths in files.items() for path in paths or ()
    ]
    parts: list[Part] = []
    for part, path in named:
        try:
            parts += content_parts([part], str(path))
        except OSError as error:
            raise SettingsError(f"--{part['type']}: {path}: {error.strerror}") from None
    return tuple(parts)


def hosted_tools(settings: AgentSettings) -> tuple[HostedTool, ...]:
    """Return the tools that `settings` enable, for a request."""
    from penstock.dialog import PythonTool, SearchTool, ShellTool

    offered = (
        (settings.enable_search, SearchTool()),
        (settings.enable_code_execution, PythonTool()),
        (settings.enable_shell, ShellTool()),
    )
    return tuple(tool for enabled, tool in offered if enabled)
