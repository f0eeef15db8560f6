"""Settings from a TOML file and the command line: defaults, then the file, then the options.

The file has a key `model` and the tables `[engine]` and `[server]`, whose keys are the fields of
EngineSettings and ServerSettings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from penstock.config.environment import Environment
from penstock.config.limits import SettingsError, check_engine, check_server
from penstock.config.settings import EngineSettings, ServerSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Tables = Mapping[str, Mapping[str, Any]]
_S = TypeVar("_S", EngineSettings, ServerSettings)


def load_settings(
    engine_options: Mapping[str, Any],
    server_options: Mapping[str, Any],
    *,
    file: Path | None,
    environment: Environment,
) -> tuple[EngineSettings, ServerSettings]:
    """Merge the sources. An option of value None was not given. Raises SettingsError."""
    tables = read_toml(file) if file is not None else {"engine": {}, "server": {}}
    from_environment = {"keep_alive_interval_ms": environment.keep_alive_interval_ms}
    engine = _build(EngineSettings, "engine", [tables["engine"], engine_options])
    server = _build(ServerSettings, "server", [from_environment, tables["server"], server_options])
    check_engine(engine)
    check_server(server)
    return engine, server


def read_toml(path: Path) -> Tables:
    """The tables `engine` and `server` of a file. Raises SettingsError naming file and key."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    engine, server = document.pop("engine", {}), document.pop("server", {})
    for table, name in ((engine, "engine"), (server, "server")):
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {name!r} must be a table: [{name}]")
    if "model" in document:
        engine = {"model": document.pop("model"), **engine}
    if document:
        raise SettingsError(f"{path}: unknown key {next(iter(document))!r} at the top level")
    for table, kind, name in (
        (engine, EngineSettings, "engine"),
        (server, ServerSettings, "server"),
    ):
        unknown = set(table) - set(kind.__struct_fields__)
        if unknown:
            raise SettingsError(f"{path}: unknown key {sorted(unknown)[0]!r} in [{name}]")
    return {"engine": engine, "server": server}


def _build(kind: type[_S], name: str, sources: list[Mapping[str, Any]]) -> _S:
    merged: dict[str, Any] = {}
    for source in sources:
        merged.update({key: value for key, value in source.items() if value is not None})
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"[{name}] {error}") from None
