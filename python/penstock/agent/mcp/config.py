"""The configuration file of MCP servers, in one of two JSON forms.

    {"servers": [{"name": ..., "source": {"type": "Http", "url": ...}}], "tool_timeout_secs": 30}
    {"mcpServers": {name: {"command": ..., "args": [...]} or {"url": ..., "headers": {...}}}}

The second form is the one of Claude Desktop; VS Code calls its key `servers`. Keys of other
programs are ignored there, with a warning. In the first form an unknown key is an error.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from penstock.agent.mcp.names import MAX_PREFIX_CHARS, sanitised
from penstock.config import SettingsError

log = logging.getLogger(__name__)

RESERVED_PREFIX: Final = "service"
"""The built-in tools are named `service_...`."""

_PREFIX: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_PREFIX_CHARS}}}")
_KINDS: Final = '"Http", "Sse" and "Process"'


class HttpSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="Http"):
    """A server that is reached over streamable HTTP.

    - `timeout_secs`: seconds to connect, and per call; None: `tool_timeout_secs` of the file.
    """

    url: str
    timeout_secs: float | None = None
    headers: dict[str, str] = {}


class SseSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="Sse"):
    """A server that is reached over HTTP with server-sent events, the transport of 2024."""

    url: str
    timeout_secs: float | None = None
    headers: dict[str, str] = {}


class ProcessSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="Process"):
    """A server that runs as a child process and is reached over its standard input and output.

    - `env`: variables added to HOME, LOGNAME, PATH, SHELL, TERM and USER of the parent. No other
      variable is passed on.
    """

    command: str
    args: tuple[str, ...] = ()
    work_dir: str | None = None
    env: dict[str, str] = {}
    timeout_secs: float | None = None


class _WebSocketSource(msgspec.Struct, frozen=True, tag="WebSocket"):
    """A source of mistral.rs's form that is refused."""


Source = HttpSource | SseSource | ProcessSource


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server.

    - `prefix`: tool names are `<prefix>_<tool>`. By default the name of the server, with `_` for
      all characters except letters, digits, `_` and `-`.
    - `timeout_s`: seconds to connect, and per call.
    """

    name: str
    source: Source
    prefix: str
    timeout_s: float
    bearer_token: str | None = None


class McpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The enabled servers of a configuration file.

    - `auto_register_tools`: offer the tools to the model. If false, the servers are connected and
      reported only.
    - `max_concurrent_calls`: calls that run at once, per server.
    """

    servers: tuple[ServerConfig, ...] = ()
    auto_register_tools: bool = True
    max_concurrent_calls: int = 10


class _Options(msgspec.Struct, frozen=True):
    auto_register_tools: bool = True
    tool_timeout_secs: float = 30.0
    max_concurrent_calls: int = 10


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `servers`, the first form."""

    name: str
    source: HttpSource | SseSource | ProcessSource | _WebSocketSource
    id: str | None = None
    enabled: bool = True
    tool_prefix: str | None = None
    resources: tuple[str, ...] | None = None
    bearer_token: str | None = None


class _NamedEntry(msgspec.Struct, frozen=True):
    """An entry of `mcpServers`, the second form."""

    type: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    enabled: bool = True
    disabled: bool = False


class _Invalid(Exception):
    """`key` of the file has a wrong value."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"`{key}`: {message}" if key else message)


def read_mcp_config(path: str | Path) -> McpConfig:
    """Read a configuration file. Raises SettingsError, whose message names the file and the key."""
    try:
        return parse_mcp_config(Path(path).read_bytes())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def parse_mcp_config(data: bytes) -> McpConfig:
    """Return the configuration in a file's content. Raises SettingsError, whose message names the
    key."""
    try:
        file = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"is not a JSON object: {error}") from None
    try:
        return _config(file)
    except _Invalid as error:
        raise SettingsError(str(error)) from None


def _config(file: dict[str, Any]) -> McpConfig:
    if "mcpServers" in file and "servers" in file:
        raise _Invalid("mcpServers", "cannot be combined with `servers`")
    options = _converted(file, _Options, "")
    if not 0 < options.tool_timeout_secs < float("inf"):
        raise _Invalid("tool_timeout_secs", "must be greater than 0")
    if options.max_concurrent_calls < 1:
        raise _Invalid("max_concurrent_calls", "must be at least 1")
    key = "mcpServers" if "mcpServers" in file else "servers"
    if key not in file:
        raise _Invalid("servers", "is missing")
    servers: list[ServerConfig] = []
    if isinstance(file[key], dict):
        for name, value in file[key].items():
            servers += _of_named_entry(name, value, f"{key}.{name}", options)
    elif isinstance(file[key], list) and key == "servers":
        unknown = set(file) - {"servers", *_Options.__struct_fields__}
        if unknown:
            raise _Invalid(min(unknown), "is not a known key")
        for number, value in enumerate(file[key]):
            servers += _of_entry(value, f"servers[{number}]", options)
    else:
        raise _Invalid(key, "must be an object, name -> server" + " or a list" * (key == "servers"))
    _check_distinct(servers)
    return McpConfig(
        servers=tuple(servers),
        auto_register_tools=options.auto_register_tools,
        max_concurrent_calls=options.max_concurrent_calls,
    )


def _of_entry(value: Any, key: str, options: _Options) -> list[ServerConfig]:
    """Return the server of an entry of the first form, none if it is disabled."""
    entry = _converted(value, _Entry, key)
    if isinstance(entry.source, _WebSocketSource):
        raise _Invalid(f"{key}.source.type", f"WebSocket is not supported; supported are {_KINDS}")
    if entry.resources:
        log.warning("`%s.resources` is ignored: resources of MCP servers are not read", key)
    if not entry.enabled:
        return []
    return [
        _server(
            entry.name, entry.source, f"{key}.source", options,
            prefix=_prefix(entry.name, entry.tool_prefix, key),
            token=entry.bearer_token,
        )
    ]  # fmt: skip


def _of_named_entry(name: str, value: Any, key: str, options: _Options) -> list[ServerConfig]:
    """Return the server of an entry of the second form, none if it is disabled."""
    entry = _converted(value, _NamedEntry, key)
    unknown = sorted(set(value) - set(_NamedEntry.__struct_fields__))
    if unknown:
        log.warning("`%s`: ignored keys: %s", key, ", ".join(unknown))
    if entry.disabled or not entry.enabled:
        return []
    if (entry.command is None) == (entry.url is None):
        raise _Invalid(key, "must have either `command` or `url`")
    kind = (entry.type or ("http" if entry.command is None else "stdio")).lower()
    source: Source
    if entry.command is not None and kind == "stdio":
        source = ProcessSource(entry.command, entry.args, entry.cwd, entry.env)
    elif entry.url is not None and kind in ("http", "streamable-http", "streamablehttp"):
        source = HttpSource(entry.url, headers=entry.headers)
    elif entry.url is not None and kind == "sse":
        source = SseSource(entry.url, headers=entry.headers)
    else:
        right = '"http" or "sse"' if entry.command is None else '"stdio"'
        raise _Invalid(f"{key}.type", f"{entry.type!r} is not supported; must be {right}")
    return [_server(name, source, key, options, prefix=_prefix(name, None, key), token=None)]


def _server(
    name: str, source: Source, key: str, options: _Options, *, prefix: str, token: str | None
) -> ServerConfig:
    timeout_s = options.tool_timeout_secs if source.timeout_secs is None else source.timeout_secs
    if not 0 < timeout_s < float("inf"):
        raise _Invalid(f"{key}.timeout_secs", "must be greater than 0")
    token_key = f"{key.removesuffix('.source')}.bearer_token"
    if token is not None and not (token.isascii() and token.isprintable()):
        raise _Invalid(token_key, "must be printable ASCII")
    match source:
        case ProcessSource():
            if token is not None:
                raise _Invalid(token_key, "is for servers with a URL only")
            _check_texts(key, (source.command, *source.args, *source.env, *source.env.values()))
        case HttpSource() | SseSource():
            _check_url(source.url, f"{key}.url")
            for header, value in source.headers.items():
                if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", header):
                    raise _Invalid(f"{key}.headers", f"{header!r} is not a header name")
                if not value.isascii() or not value.isprintable():
                    raise _Invalid(f"{key}.headers.{header}", "must be printable ASCII")
    return ServerConfig(
        name=name, source=source, prefix=prefix, timeout_s=timeout_s, bearer_token=token
    )


def _check_url(url: str, key: str) -> None:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise _Invalid(key, f"{url!r} is not an http:// or https:// URL")


def _check_texts(key: str, texts: tuple[str, ...]) -> None:
    if not texts[0]:
        raise _Invalid(f"{key}.command", "is empty")
    if any("\0" in text for text in texts):
        raise _Invalid(key, "contains a NUL character")


def _prefix(name: str, given: str | None, key: str) -> str:
    if not name:
        raise _Invalid(f"{key}.name", "is empty")
    if given is None:
        given, key = sanitised(name, MAX_PREFIX_CHARS), f"{key}.name"
    else:
        key = f"{key}.tool_prefix"
    if not _PREFIX.fullmatch(given):
        limit = f"1 to {MAX_PREFIX_CHARS} letters, digits, `_` and `-`"
        raise _Invalid(key, f"{given!r} is not {limit}")
    if given == RESERVED_PREFIX or given.startswith(f"{RESERVED_PREFIX}_"):
        raise _Invalid(key, f"the prefix {given!r} is reserved; set another `tool_prefix`")
    return given


def _check_distinct(servers: list[ServerConfig]) -> None:
    for name in ("name", "prefix"):
        values = [getattr(server, name) for server in servers]
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            hint = "" if name == "name" else "; set `tool_prefix` of one of them"
            raise _Invalid("servers", f"two servers have the {name} {twice!r}{hint}")


def _converted(value: Any, kind: Any, key: str) -> Any:
    """Return a value of the file as a struct. Raises _Invalid, which names the key."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        at = f"{key}{place.rstrip('`')}".lstrip(".")
        if at.endswith(".type") and message.startswith("Invalid value"):
            message = f"{message}; supported are {_KINDS}"
        raise _Invalid(at, message) from None
