"""Options for features that this build does not have.

They are refused with the reason, and not as unknown options. Values that do not need the feature,
such as the default or "off", are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.config.validation import SettingsError

SEARCH: Final = "no web search"
CODE: Final = "no code execution"
SHELL: Final = "no shell tool"
TOOLS: Final = "no tools that run on the server"
SANDBOX: Final = "no sandbox"


@dataclass(frozen=True)
class UnsupportedOption:
    """An option that is refused.

    `name`: the TOML key; on the command line, with dashes instead of underscores.
    `kind`: the type of its value: bool, int or str.
    `missing`: the feature that this build does not have, for the error message.
    `no_op_values`: values that are accepted, because they do not need the feature.
    """

    name: str
    kind: type
    missing: str
    no_op_values: tuple[Any, ...] = ()


UNSUPPORTED_OPTIONS: Final = (
    UnsupportedOption("no_ui", bool, "no web UI", (False, True)),
    UnsupportedOption("enable_search", bool, SEARCH, (False,)),
    UnsupportedOption("enable_code_execution", bool, CODE, (False,)),
    UnsupportedOption("code_exec_timeout", int, CODE, (60,)),
    UnsupportedOption("code_exec_python", str, CODE, ("python3",)),
    UnsupportedOption("code_exec_workdir", str, CODE),
    UnsupportedOption("enable_shell", bool, SHELL, (False,)),
    UnsupportedOption("shell_timeout", int, SHELL, (600,)),
    UnsupportedOption("shell_path", str, SHELL, ("/bin/sh",)),
    UnsupportedOption("shell_workdir", str, SHELL),
    UnsupportedOption("agent", bool, TOOLS, (False,)),
    UnsupportedOption("agent_permission", str, TOOLS, ("auto",)),
    UnsupportedOption("max_tool_rounds", int, TOOLS),
    UnsupportedOption("tool_dispatch_url", str, TOOLS),
    UnsupportedOption("mcp_config", str, TOOLS),
    UnsupportedOption("mcp_port", int, "no server for tools"),
    UnsupportedOption("sandbox", str, SANDBOX, ("auto", "off")),
    UnsupportedOption("sandbox_profile", str, SANDBOX),
    UnsupportedOption("sandbox_network", str, SANDBOX),
    UnsupportedOption("sb_max_memory_mb", int, SANDBOX, (2048,)),
    UnsupportedOption("sb_max_cpu_secs", int, SANDBOX, (600,)),
    UnsupportedOption("sb_max_procs", int, SANDBOX, (64,)),
)
# Key of the table [sandbox] -> name of the command-line option.
SANDBOX_KEYS: Final = {
    "mode": "sandbox",
    "profile": "sandbox_profile",
    "network": "sandbox_network",
    "max_memory_mb": "sb_max_memory_mb",
    "max_cpu_secs": "sb_max_cpu_secs",
    "max_procs": "sb_max_procs",
}


def reject_unsupported(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` without the unsupported options. Raises SettingsError for an unsupported
    option whose value needs the missing feature."""
    options = {option.name: option for option in UNSUPPORTED_OPTIONS}
    for name, value in values.items():
        option = options.get(name)
        if option is not None and value is not None and value not in option.no_op_values:
            raise SettingsError(f"{name} cannot be used: this build has {option.missing}")
    return {name: value for name, value in values.items() if name not in options}


def check_sandbox(table: Mapping[str, Any]) -> None:
    """Raise SettingsError for unknown keys of the table [sandbox], and for keys whose value needs
    the missing feature."""
    _refuse_unknown(table, SANDBOX_KEYS)
    reject_unsupported({SANDBOX_KEYS[key]: value for key, value in table.items()})


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r} in [sandbox]")
