"""`penstock run`: a terminal chat, with the engine in this process or with a running server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from penstock.cli.agent_setting_options import LOCAL_TOOL_OPTIONS
from penstock.cli.help_text import PlainCommand
from penstock.cli.media_setting_options import MEDIA_OPTIONS
from penstock.cli.settings_parameters import CommandSettings, with_settings

if TYPE_CHECKING:
    from penstock.models.media.prepared import MediaKind

PANEL = "Answers"
SERVER_PANEL = "Server"


class RunCommand(PlainCommand):
    """A command whose words are a model, a question, or a model and a question."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from penstock.cli.chat.questions import split_words

        rest = super().parse_args(ctx, args)
        given = ctx.params
        words = [word for word in (given["model"], *(given["question"] or ())) if word is not None]
        given["model"], given["text"] = split_words(words, given["model_id"], given["text"])
        given["model_id"], given["question"] = None, None
        return rest


def _option(*flags: str, help: str, panel: str = PANEL, **details: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=panel, **details)


@with_settings((*LOCAL_TOOL_OPTIONS, *MEDIA_OPTIONS))
def run(
    parsed: CommandSettings,
    question: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            help="Answer this question and exit. Text on standard input is its document.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        Optional[str],  # noqa: UP045
        _option("-i", "--input", help="Same as QUESTION."),
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
    plain: Annotated[
        bool,
        _option("--plain", help="Show answers as the model writes them, without Markdown."),
    ] = False,
    url: Annotated[
        Optional[str],  # noqa: UP045
        _option(
            "--url",
            help="Use the server at this address.",
            panel=SERVER_PANEL,
            show_default="a server on port 1234, if one runs",
        ),
    ] = None,
    local: Annotated[
        bool,
        _option("--local", help="Use no server: run the model here.", panel=SERVER_PANEL),
    ] = False,
) -> None:
    """Chat with a model in the terminal. /help lists the commands.

    A Penstock server that already runs on this machine is used, unless an option of the engine or
    of tools is given.
    """
    from penstock.cli.chat.session import ChatOptions, run_chat

    attached: dict[MediaKind, list[Path] | None] = {"image": image, "audio": audio, "video": video}
    run_chat(
        parsed,
        ChatOptions(
            question=text,
            settings=_settings(system, max_tokens, thinking, adapter),
            attached=tuple(
                (kind, path) for kind, paths in attached.items() for path in paths or ()
            ),
            plain=plain,
            url=url,
            local=local,
        ),
    )


def _settings(
    system: str | None, max_tokens: int | None, thinking: bool | None, adapter: str | None
) -> dict[str, Any]:
    """Return the settings of the chat that the options set."""
    given = {
        "system": system or None,
        "max_tokens": max_tokens,
        "enable_thinking": thinking,
        "adapter": adapter,
    }
    return {name: value for name, value in given.items() if value is not None}
