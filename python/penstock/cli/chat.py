"""`penstock run`: a chat in the terminal, with the engine in this process."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from penstock.cli.options import Chosen, with_settings

PANEL = "Answers"


@with_settings(server=False)
def run(
    chosen: Chosen,
    text: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("-i", "--input", help="Answer this once, and leave.", rich_help_panel=PANEL),
    ] = None,
    system: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--system", help="System message.", rich_help_panel=PANEL),
    ] = None,
    temperature: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--temperature",
            min=0,
            max=2,
            metavar="X",
            help="0 (always the likeliest token) to 2.",
            show_default="the model's",
            rich_help_panel=PANEL,
        ),
    ] = None,
    max_tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            "--max-tokens",
            min=1,
            metavar="N",
            help="Longest answer, in tokens.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    thinking: Annotated[
        Optional[bool],  # noqa: UP045
        typer.Option(
            "--thinking/--no-thinking",
            help="Let the model think before it answers.",
            show_default="the template's",
            rich_help_panel=PANEL,
        ),
    ] = None,
    adapter: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--adapter", help="Answer with this adapter; --lora loads it.", rich_help_panel=PANEL
        ),
    ] = None,
) -> None:
    """Chat with a model in the terminal. /help lists the commands."""
    from rich.console import Console

    from penstock.cli.conversation import Conversation
    from penstock.cli.local import local_model
    from penstock.cli.terminal import Chat
    from penstock.dialog import Limits, ReasoningPolicy, Sampling

    engine_settings = chosen.one_engine()
    conversation = Conversation(
        system=system,
        sampling=Sampling(temperature=temperature),
        limits=Limits(max_tokens=max_tokens, truncate=True),
        reasoning=ReasoningPolicy(enabled=thinking),
        adapter=adapter,
    )
    with local_model(engine_settings) as (loop, model):
        chat = Chat(loop, model.agent, conversation, Console())
        if text is not None:
            chat.answer_once(text)
        else:
            chat.talk(model.name)
