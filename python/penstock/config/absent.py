"""Options of the specification whose runtime this build does not have.

They are recognised, so that an operator reads why and not that they were mistyped; and refused,
because a server without what was asked for is not what was asked for. A value that asks for nothing
(the specification's default, or switching off what is not there) is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.config.limits import SettingsError

SEARCH: Final = "no web search"
CODE: Final = "no code execution"
SHELL: Final = "no shell tool"
TOOLS: Final = "no tools that run on the server"
SANDBOX: Final = "no sandbox, as nothing runs in one"


@dataclass(frozen=True)
class AbsentOption:
    """`name`: as a key of TOML, and with dashes on the command line. `kind`: bool, int or str.
    `harmless`: the values that ask for nothing. `missing`: what this build does not have."""

    name: str
    kind: type
    missing: str
    harmless: tuple[Any, ...] = ()


ABSENT: Final = (
    AbsentOption("no_ui", bool, "no web UI", (False, True)),
    AbsentOption("enable_search", bool, SEARCH, (False,)),
    AbsentOption("enable_code_execution", bool, CODE, (False,)),
    AbsentOption("code_exec_timeout", int, CODE, (60,)),
    AbsentOption("code_exec_python", str, CODE, ("python3",)),
    AbsentOption("code_exec_workdir", str, CODE),
    AbsentOption("enable_shell", bool, SHELL, (False,)),
    AbsentOption("shell_timeout", int, SHELL, (600,)),
    AbsentOption("shell_path", str, SHELL, ("/bin/sh",)),
    AbsentOption("shell_workdir", str, SHELL),
    AbsentOption("agent", bool, TOOLS, (False,)),
    AbsentOption("agent_permission", str, TOOLS, ("auto",)),
    AbsentOption("max_tool_rounds", int, TOOLS),
    AbsentOption("tool_dispatch_url", str, TOOLS),
    AbsentOption("mcp_config", str, TOOLS),
    AbsentOption("mcp_port", int, "no server for tools"),
    AbsentOption("sandbox", str, SANDBOX, ("auto", "off")),
    AbsentOption("sandbox_profile", str, SANDBOX),
    AbsentOption("sandbox_network", str, SANDBOX),
    AbsentOption("sb_max_memory_mb", int, SANDBOX, (2048,)),
    AbsentOption("sb_max_cpu_secs", int, SANDBOX, (600,)),
    AbsentOption("sb_max_procs", int, SANDBOX, (64,)),
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


def without_absent(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` less the options of what is not there. Raises SettingsError for one that asks for
    something."""
    options = {option.name: option for option in ABSENT}
    for name, value in values.items():
        option = options.get(name)
        if option is not None and value is not None and value not in option.harmless:
            raise SettingsError(f"{name} cannot be used: this build has {option.missing}")
    return {name: value for name, value in values.items() if name not in options}


def check_sandbox(table: Mapping[str, Any]) -> None:
    """The same for the table [sandbox]."""
    _refuse_unknown(table, SANDBOX_KEYS)
    without_absent({SANDBOX_KEYS[key]: value for key, value in table.items()})


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r} in [sandbox]")
