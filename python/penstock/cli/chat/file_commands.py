"""Commands about files: /attach, /image, /audio, /video, /save, /load."""

from __future__ import annotations

import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from penstock.api.schema.chats import TextBlock
from penstock.base.errors import InvalidRequest
from penstock.cli.chat.command_context import CommandContext, Outcome
from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.documents import SUFFIX, load_chat, save_chat
from penstock.cli.chat.tool_views import escaped, size_text
from penstock.models.media.prepared import MediaKind

MAX_TEXT_BYTES: Final = 4 * 1024 * 1024
_NAMES: Final = {"image": "an image", "audio": "a recording", "video": "a video"}
_GENERAL: Final = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}


def attacher_of(
    kind: MediaKind | None,
) -> Callable[[CommandContext, str], Awaitable[Outcome]]:
    """Return the function of a command that attaches a file. `kind`: None: the content tells."""

    async def attach(chat: CommandContext, name: str) -> Outcome:
        if not name:
            raise InvalidRequest(f"name a file: /{kind or 'attach'} FILE")
        path = Path(name).expanduser()
        await attach_file(chat.conversation, path, kind)
        return f"{path.name} goes with your next line."

    return attach


async def attach_file(conversation: Conversation, path: Path, kind: MediaKind | None) -> None:
    """Let a file go with the next question. Raises InvalidRequest and OSError."""
    await attach_data(conversation, path.name, path.read_bytes(), kind)


async def attach_data(
    conversation: Conversation, name: str, data: bytes, kind: MediaKind | None
) -> None:
    """Let a file go with the next question: media, or a text, which is quoted. `kind`: None: the
    content tells. Raises InvalidRequest for other files."""
    from penstock.media.formats import kind_of

    found = kind_of(data)
    if kind is not None and found is None:
        raise InvalidRequest(f"{name} is not {_NAMES[kind]} in a known format")
    if found is not None:
        found = kind or found
        given = mimetypes.guess_type(name)[0] or ""
        mime_type = given if given.startswith(f"{found}/") else _GENERAL[found]
        await conversation.attach(name, mime_type, data)
        return
    text = _text(data, name)
    conversation.waiting.append(TextBlock(f"{name}:\n\n{text}\n\n"))


async def save(chat: CommandContext, name: str) -> Outcome:
    """Save a file that a tool made, or the chat."""
    if not name:
        raise InvalidRequest("name a file: /save FILE")
    if name in chat.files:
        return _save_produced(chat, name)
    if Path(name).suffix not in ("", SUFFIX):
        raise InvalidRequest(f"no tool made a file {name!r}, and a chat is saved as *{SUFFIX}")
    path = save_chat(chat.conversation, Path(name).expanduser())
    return f"Saved the chat as {path}."


async def load(chat: CommandContext, name: str) -> Outcome:
    """Load a chat."""
    if not name:
        raise InvalidRequest("name a file: /load FILE")
    loaded = load_chat(chat.conversation, Path(name).expanduser())
    chat.files.clear()
    count = len(chat.conversation.branch)
    text = f"Loaded {escaped(loaded.title)!r} with {count} messages."
    model = chat.conversation.settings.pop("model", None)
    if model is not None and model != chat.backend.model.name:
        text += f" Its model was {escaped(str(model))}; /model switches."
    return text


def _save_produced(chat: CommandContext, name: str) -> str:
    """Write a produced file to the current folder, and return the text to show."""
    file = chat.files[name]
    data = file.data if file.text is None else file.text.encode()
    if data is None:
        return f"The content of {escaped(name)} was not kept."
    target = Path(Path(name).name)
    try:
        with target.open("xb") as out:
            out.write(data)
    except OSError as error:
        return f"{escaped(target.name)}: {error.strerror}"
    return f"Wrote {escaped(target.name)}, {size_text(len(data))}."


def _text(data: bytes, name: str) -> str:
    kinds = ", ".join(_NAMES.values())
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidRequest(f"{name} is larger than {size_text(MAX_TEXT_BYTES)} of text")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is not {kinds} or a text in UTF-8") from None
    if "\0" in text:
        raise InvalidRequest(f"{name} is not {kinds} or a text in UTF-8")
    return text
