"""Settings from a TOML file and the command line: defaults, then the file, then the options.

The file has a key `model` and the tables `[engine]`, `[server]` and `[store]`, whose keys are the
fields of EngineSettings, ServerSettings and StoreSettings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from penstock.config.environment import Environment
from penstock.config.limits import SettingsError, check_engine, check_server
from penstock.config.settings import EngineSettings, ServerSettings, StoreSettings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Tables = Mapping[str, Mapping[str, Any]]
_S = TypeVar("_S", EngineSettings, ServerSettings, StoreSettings)

TABLES: Final = {"engine": EngineSettings, "server": ServerSettings, "store": StoreSettings}


def load_settings(
    engine_options: Mapping[str, Any],
    server_options: Mapping[str, Any],
    store_options: Mapping[str, Any],
    *,
    file: Path | None,
    environment: Environment,
) -> tuple[EngineSettings, ServerSettings]:
    """Merge the sources. An option of value None was not given. Raises SettingsError."""
    tables = read_toml(file) if file is not None else {name: {} for name in TABLES}
    from_environment = {"keep_alive_interval_ms": environment.keep_alive_interval_ms}
    engine = _build(EngineSettings, "engine", [tables["engine"], engine_options])
    store = _build(StoreSettings, "store", [tables["store"], store_options])
    from_tables = [from_environment, tables["server"], server_options, {"store": store}]
    server = _build(ServerSettings, "server", from_tables)
    check_engine(engine)
    check_server(server)
    return engine, server


def read_toml(path: Path) -> Tables:
    """The tables of a file. Raises SettingsError naming file and key."""
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    tables = {name: document.pop(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: {name!r} must be a table: [{name}]")
    if "model" in document:
        tables["engine"] = {"model": document.pop("model"), **tables["engine"]}
    if document:
        raise SettingsError(f"{path}: unknown key {next(iter(document))!r} at the top level")
    for name, table in tables.items():
        unknown = set(table) - _keys(name)
        if unknown:
            raise SettingsError(f"{path}: unknown key {sorted(unknown)[0]!r} in [{name}]")
    return tables


def _keys(table: str) -> set[str]:
    """What a table may have; `[store]` is a table of its own, not a key of `[server]`."""
    return set(TABLES[table].__struct_fields__) - {"store"}


def _build(kind: type[_S], name: str, sources: list[Mapping[str, Any]]) -> _S:
    merged: dict[str, Any] = {}
    for source in sources:
        merged.update({key: value for key, value in source.items() if value is not None})
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"[{name}] {error}") from None
