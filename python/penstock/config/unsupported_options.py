"""Options of the specification whose runtime this build does not have.

They are recognised, so that an operator reads why and not that they were mistyped; and refused,
because a server without what was asked for is not what was asked for. A value that asks for nothing
(the specification's default, or switching off what is not there) is accepted.
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
SANDBOX: Final = "no sandbox, as nothing runs in one"


@dataclass(frozen=True)
class UnsupportedOption:
    """`name`: as a key of TOML, and with dashes on the command line. `kind`: bool, int or str.
    `no_op_values`: the values that ask for nothing. `missing`: what this build does not have."""

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
# keys of the table [sandbox] -> the option that the command line has for them
SANDBOX_KEYS: Final = {
    "mode": "sandbox",
    "profile": "sandbox_profile",
    "network": "sandbox_network",
    "max_memory_mb": "sb_max_memory_mb",
    "max_cpu_secs": "sb_max_cpu_secs",
    "max_procs": "sb_max_procs",
}


def reject_unsupported(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` less the options of what is not there. Raises SettingsError for one that asks for
    something."""
    options = {option.name: option for option in UNSUPPORTED_OPTIONS}
    for name, value in values.items():
        option = options.get(name)
        if option is not None and value is not None and value not in option.no_op_values:
            raise SettingsError(f"{name} cannot be used: this build has {option.missing}")
    return {name: value for name, value in values.items() if name not in options}


def check_sandbox(table: Mapping[str, Any]) -> None:
    """The same for the table [sandbox]."""
    _refuse_unknown(table, SANDBOX_KEYS)
    reject_unsupported({SANDBOX_KEYS[key]: value for key, value in table.items()})


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r} in [sandbox]")
