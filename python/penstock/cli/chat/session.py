"""Starts and ends the chat of `penstock run`: chooses the backend, the reader and the screen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from penstock.base.errors import InvalidRequest
from penstock.cli.chat.backend import Backend
from penstock.cli.chat.chat_settings import check_settings
from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.file_commands import attach_data, attach_file
from penstock.cli.chat.questions import piped_document
from penstock.cli.chat.readers import PipeReader, Reader
from penstock.cli.chat.screen import Screen
from penstock.cli.chat.server_backend import DEFAULT_URL, ServerInfo, connect, find_server
from penstock.cli.chat.terminal_chat import Chat
from penstock.cli.chat.words import words_for
from penstock.cli.event_loops import event_loop
from penstock.cli.settings_parameters import CommandSettings
from penstock.config import AgentSettings, SettingsError, read_environment

if TYPE_CHECKING:
    from penstock.models.media.prepared import MediaKind

SAMPLED: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Options of the engine that a request can set too."""
HISTORY: Final = "history"
STDIN: Final = "standard input"


@dataclass(frozen=True)
class ChatOptions:
    """The options of `penstock run` itself.

    `question`: None to read questions.
    `settings`: the settings of the chat.
    `attached`: (kind, path) of the files for the first question.
    `plain`: show answers without Markdown.
    `url`: the server to use; None: one on this machine, if one runs.
    `local`: use no server.
    """

    question: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    attached: tuple[tuple[MediaKind, Path], ...] = ()
    plain: bool = False
    url: str | None = None
    local: bool = False


def run_chat(parsed: CommandSettings, options: ChatOptions) -> None:
    """Run the chat until it ends. Raises ModelError, SettingsError, ServiceError and
    KeyboardInterrupt."""
    if options.url is not None and options.local:
        raise SettingsError("--url and --local exclude each other; give one of them")
    check_settings(options.settings)
    with event_loop() as loop:
        loop.run_until_complete(_chat(parsed, options))


async def _chat(parsed: CommandSettings, options: ChatOptions) -> None:
    conversation = Conversation(options.settings)
    question = await _first_question(conversation, options)
    screen = _screen(options)
    backend = await _backend(parsed, options, screen, conversation)
    try:
        if question is None and backend.model.transcribes and options.attached:
            question = ""
        chat = Chat(backend, conversation, _reader(screen, backend), screen)
        if question is None:
            await chat.talk()
        else:
            await chat.answer_once(question)
    finally:
        await backend.close()


async def _first_question(conversation: Conversation, options: ChatOptions) -> str | None:
    """Return the question of the command line, and attach its files and its document."""
    for kind, path in options.attached:
        try:
            await attach_file(conversation, path, kind)
        except OSError as error:
            raise SettingsError(f"--{kind}: {path}: {error.strerror}") from None
        except InvalidRequest as error:
            raise SettingsError(f"--{kind}: {error.message}") from None
    document = None if options.question is None else piped_document()
    if document is not None:
        await attach_data(conversation, STDIN, document, None)
    return options.question


def _screen(options: ChatOptions) -> Screen:
    console = Console()
    notes = None if console.is_terminal and sys.stdin.isatty() else Console(stderr=True)
    return Screen(console, notes, renders_markdown=not options.plain)


def _reader(screen: Screen, backend: Backend) -> Reader:
    """Return the line editor, or, if no person can see it, a reader of standard input."""
    if not (sys.stdin.isatty() and screen.notes.is_terminal):
        return PipeReader()
    from prompt_toolkit.output import create_output

    from penstock.cli.chat.line_editor import LineEditor

    state = read_environment().state
    return LineEditor(
        None if state is None else state / HISTORY,
        lambda kind: words_for(backend, kind),
        screen.note,
        create_output(stdout=None if screen.notes is screen.console else sys.stderr),
    )


async def _backend(
    parsed: CommandSettings, options: ChatOptions, screen: Screen, conversation: Conversation
) -> Backend:
    """Return the server that the options name or that runs on this machine, else an engine in this
    process."""
    notes: list[str] = []
    url = await chosen_server(parsed, options, notes.append)
    if url is None:
        backend = await _local(parsed, conversation)
    else:
        backend = await _connected(url, parsed, conversation)
    for note in notes:  # an error comes alone
        screen.note(note)
    return backend


async def _connected(url: str, parsed: CommandSettings, conversation: Conversation) -> Backend:
    given = {name: parsed.engine.get(name) for name in SAMPLED}
    sampling = {name: value for name, value in given.items() if value is not None}
    conversation.settings = {**sampling, **conversation.settings}
    check_settings(conversation.settings)
    return await connect(url, parsed.engine.get("model"))


async def chosen_server(
    parsed: CommandSettings,
    options: ChatOptions,
    tell: Callable[[str], None],
    usual: str = DEFAULT_URL,
) -> str | None:
    """Return the URL of the server to use; None to run the model in this process.

    `tell`: shows one line if a server at the usual address is used or has not the model.
    """
    if options.url is not None:
        return options.url
    if options.local or not _suits_a_server(parsed):
        return None
    info, model = await find_server(usual), parsed.engine.get("model")
    if info is None:
        return None
    if not _serves(info, model):
        tell(f"The server at {usual} does not have {model or 'a model for texts'}; it runs here.")
        return None
    tell(f"Using the server at {usual}; --local runs the model here.")
    return usual


async def _local(parsed: CommandSettings, conversation: Conversation) -> Backend:
    from penstock.cli.chat.local_backend import LocalBackend, LocalOptions, enabled_tools
    from penstock.cli.pull import fetch_model

    tools = parsed.tools()
    agent = tools if _has_tools(tools) else None
    engine = parsed.one_engine()
    enabled = enabled_tools(agent)
    if enabled:
        conversation.settings["tools"] = dict.fromkeys(enabled, True)
    files = fetch_model(engine.model)
    backend = LocalBackend(LocalOptions(engine, agent, parsed.media()))
    await backend.start(files)
    return backend


def _has_tools(tools: AgentSettings) -> bool:
    from penstock.cli.chat.local_backend import enabled_tools

    return bool(enabled_tools(tools)) or tools.mcp_config is not None


def _suits_a_server(parsed: CommandSettings) -> bool:
    """Whether no option is given that only an engine in this process can follow."""
    other = {
        name: value
        for name, value in (parsed.engine | parsed.server).items()
        if name not in (*SAMPLED, "model")
    }
    return parsed.file is None and all(value is None for value in other.values())


def _serves(info: ServerInfo, model: str | None) -> bool:
    names = [served.id for served in info.texts]
    return bool(names) if model is None else model in names
