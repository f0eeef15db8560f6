"""The options of the tools that the server runs, and of their sandbox.

An option has one name on the command line and, for compatibility, in the table `[server]`. In the
tables `[agent]`, `[agent.search]` and `[sandbox]` its key may be shorter. `agent` is a shortcut,
and a secret may be given as the path of a file; so the options are converted to an AgentSettings
instead of being its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.config.agent_validation import check_agent, check_switches
from penstock.config.settings import AgentSettings, SandboxSettings, SearchSettings
from penstock.config.validation import SettingsError, build_settings, check_keys

SHORTCUT: Final = "agent"
SWITCHES: Final = ("enable_search", "enable_code_execution", "enable_shell")
NESTED: Final = ("search", "sandbox")
SECRETS: Final = ("tool_dispatch_secret", "search_api_key")
MAX_SECRET_BYTES: Final = 64 * 1024

# Key of a TOML table -> name of the option.
AGENT_KEYS: Final[Mapping[str, str]] = {
    "enable_all": SHORTCUT,
    **{name: name for name in AgentSettings.__struct_fields__ if name not in NESTED},
    "tool_dispatch_secret_file": "tool_dispatch_secret_file",
}
SEARCH_KEYS: Final[Mapping[str, str]] = {
    **{name: f"search_{name}" for name in SearchSettings.__struct_fields__},
    "api_key_file": "search_api_key_file",
}
SANDBOX_KEYS: Final[Mapping[str, str]] = {
    "mode": "sandbox",
    "profile": "sandbox_profile",
    "network": "sandbox_network",
    "max_memory_mb": "sb_max_memory_mb",
    "max_cpu_secs": "sb_max_cpu_secs",
    "max_procs": "sb_max_procs",
}
OPTION_NAMES: Final = frozenset(
    (*AGENT_KEYS.values(), *SEARCH_KEYS.values(), *SANDBOX_KEYS.values())
)


def agent_values(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of server tools in `source` that have a value."""
    return {key: v for key, v in source.items() if key in OPTION_NAMES and v is not None}


def without_agent(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return `source` without the options of server tools."""
    return {key: value for key, value in source.items() if key not in OPTION_NAMES}


def file_values(
    agent: Mapping[str, Any], sandbox: Mapping[str, Any], server: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options in the tables [agent], [sandbox] and [server] of a settings file, by
    option name. Raises SettingsError for unknown keys, and for options that are given twice."""
    search = agent.get("search", {})
    if not isinstance(search, Mapping):
        raise SettingsError("agent.search must be a table; its key `engine` names the engine")
    own = {key: value for key, value in agent.items() if key != "search"}
    merged = agent_values(server)
    for table, keys, name in (
        (own, AGENT_KEYS, "agent"),
        (search, SEARCH_KEYS, "agent.search"),
        (sandbox, SANDBOX_KEYS, "sandbox"),
    ):
        check_keys(table, tuple(keys), name)
        for key, value in table.items():
            if keys[key] in merged:
                raise SettingsError(f"{keys[key]} is given in [server] and in [{name}]")
            merged[keys[key]] = value
    return merged


def agent_settings(sources: Sequence[Mapping[str, Any]]) -> AgentSettings:
    """Merge the options of several sources; later sources win. Raises SettingsError."""
    expanded = [_with_switches(source) for source in sources]
    given: dict[str, Any] = {}
    for source in expanded:
        given.update(source)
    given = _with_secrets(given)
    nested = {
        "search": build_settings(SearchSettings, "agent.search", [_keyed(given, SEARCH_KEYS)]),
        "sandbox": build_settings(SandboxSettings, "sandbox", [_keyed(given, SANDBOX_KEYS)]),
    }
    settings = build_settings(AgentSettings, "agent", [_keyed(given, AGENT_KEYS), nested])
    check_agent(settings)
    check_switches(settings, {name for source in expanded for name in SWITCHES if source.get(name)})
    return settings


def _with_switches(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return `source` with the shortcut `agent` replaced by the switches that it sets. Switches
    that `source` also sets on their own keep their value."""
    given = dict(source)
    value = given.pop(SHORTCUT, None)
    if value is None:
        return given
    if not isinstance(value, bool):
        raise SettingsError(f"{SHORTCUT} must be true or false")
    return {**dict.fromkeys(SWITCHES, value), **given}


def _with_secrets(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `given` with each path of a secret's file replaced by the secret."""
    made = dict(given)
    for name in SECRETS:
        path = made.pop(f"{name}_file", None)
        if path is None:
            continue
        if name in made:
            raise SettingsError(f"{name}_file cannot be given beside {name}")
        made[name] = _secret(f"{name}_file", path)
    return made


def _secret(name: str, path: Any) -> str:
    """Return the text of a file without the white space around it."""
    if not isinstance(path, str):
        raise SettingsError(f"{name} must be the path of a file")
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_SECRET_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"{name} {path!r} cannot be read: {why}") from None
    if not text:
        raise SettingsError(f"{name} {path!r} is empty")
    return text


def _keyed(given: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    return {key: given[name] for key, name in keys.items() if name in given}
