"""The text for a ready server: a screen for a terminal, a line or JSON for scripts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from penstock import __version__
from penstock.cli.output import size_text

if TYPE_CHECKING:
    from penstock.api.serving.ready import Ready
    from penstock.engine.types import EngineInfo

Announcement: TypeAlias = "Callable[[Ready], str]"

CHAT: Final = '{"messages": [{"role": "user", "content": "Name three colours."}]}'


def ready_line(ready: Ready) -> str:
    """Return the line for a pipe."""
    return ready.line


def ready_json(ready: Ready) -> str:
    """Return one line of JSON, for scripts."""
    page, note = _page(ready)
    document = {
        "ready": ready.line,
        "version": __version__,
        "pid": os.getpid(),
        "url": ready.url,
        "page": page,
        "page_note": note,
        "models": [_described(name, info) for name, info in ready.infos.items()],
    }
    return msgspec.json.encode(document).decode()


def ready_screen(ready: Ready) -> str:
    """Return the screen for a terminal: addresses, models, memory, examples, and how to stop."""
    page, note = _page(ready)
    path, body, rest = _example(ready)
    rows = [
        ("Web page", page or f"none: {note}"),
        ("API", f"{ready.url}/v1 (explorer: /docs)"),
        *_network(ready),
        *(("Model" if n == 0 else "", text) for n, text in enumerate(_models(ready))),
        *(("Memory", text) for text in _memory(ready)),
    ]
    lines = [
        ready.headline,
        "",
        *(f"  {name:9} {text}" for name, text in rows),
        "",
        f"  curl {ready.url}{path} \\",
        f"    -d '{body}'{rest}",
        f'  openai.OpenAI(base_url="{ready.url}/v1", api_key="any")',
        f'  anthropic.Anthropic(base_url="{ready.url}", api_key="any")',
        "",
        "Ctrl-C stops the server: open requests may finish; a second Ctrl-C ends them.",
    ]
    return "\n".join(lines)


def _page(ready: Ready) -> tuple[str | None, str | None]:
    """Return the URL of the web page, or else the reason why there is none."""
    from penstock.api.routes.page import BUILT, INDEX

    if ready.settings.server.no_ui:
        return None, "it is off (--no-ui)"
    if not (BUILT / INDEX).is_file():
        return None, "it is not built; `make ui` in the sources builds it"
    return f"{ready.url}/ui/", None


def _network(ready: Ready) -> Iterator[tuple[str, str]]:
    if ready.listening:
        yield "Network", "open to other machines; --host 127.0.0.1 closes it"


def _models(ready: Ready) -> Iterator[str]:
    for name, info in ready.infos.items():
        if info is None:
            yield f"{name}, loaded by its first request"
        else:
            yield name + (f", context {info.max_model_len:,} tokens" if info.max_model_len else "")


def _memory(ready: Ready) -> Iterator[str]:
    infos = [info for info in ready.infos.values() if info is not None]
    if infos:
        total = size_text(sum(info.memory_bytes for info in infos))
        weights = size_text(sum(info.weight_bytes for info in infos))
        tokens = sum(info.cache_blocks * info.block_size for info in infos)
        cache = f"; the KV cache holds {tokens:,} tokens" if tokens else ""
        yield f"{total}, of which weights {weights}{cache}"


def _example(ready: Ready) -> tuple[str, str, str]:
    """Return the path, the body and further options of a request that the first model answers."""
    info = next(iter(ready.infos.values()))
    if info is not None and info.embedding_width:
        return "/v1/embeddings", '{"input": "Name three colours."}', ""
    if info is not None and info.sample_rate:
        return "/v1/audio/speech", '{"input": "The Rhine flows north."}', " -o rhine.wav"
    if info is not None and info.image_multiple:
        return "/v1/images/generations", '{"prompt": "the Rhine in winter"}', ""
    return "/v1/chat/completions", CHAT, ""


def _described(name: str, info: EngineInfo | None) -> dict[str, Any]:
    if info is None:
        return {"id": name, "loaded": False}
    return {
        "id": name,
        "loaded": True,
        "context": info.max_model_len or None,
        "memory_bytes": info.memory_bytes,
        "weight_bytes": info.weight_bytes,
    }
