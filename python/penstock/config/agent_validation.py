"""Checks the settings of server tools: ranges, folders, URLs, and options that need another one.

Messages use the names of the options (`config.agent_options`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.config.settings import AgentSettings, SandboxSettings
from penstock.config.validation import SettingsError, check_range

DAY_S: Final = 24 * 3600
# Option -> (smallest value, largest value). None is allowed if the field's type allows None.
AGENT_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "max_tool_rounds": (0, 2**31 - 1),
    "code_exec_timeout": (1, DAY_S),
    "shell_timeout": (1, DAY_S),
    "session_idle_s": (1, 2**31),
    "max_containers": (1, 2**16),
    "tool_dispatch_timeout": (1, DAY_S),
    "mcp_port": (0, 65535),
}
SANDBOX_RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "max_memory_mb": (64, 2**24),
    "max_cpu_secs": (1, 2**31),
    "max_procs": (4, 2**16),
}
# Switch -> options without effect unless it is on.
OPTIONS_OF_SWITCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "enable_code_execution": ("code_exec_timeout", "code_exec_python", "code_exec_workdir"),
    "enable_shell": ("shell_timeout", "shell_path", "shell_workdir"),
}
DISPATCH_OPTIONS: Final = ("tool_dispatch_secret", "tool_dispatch_timeout")
DEFAULTS: Final = AgentSettings()


def check_agent(settings: AgentSettings) -> None:
    """Raise SettingsError if a setting is out of range or names something that does not exist."""
    for name, (least, most) in AGENT_RANGES.items():
        check_range(name, getattr(settings, name), least, most)
    _check_sandbox(settings.sandbox)
    _check_executables(settings)
    _check_folder("code_exec_workdir", settings.code_exec_workdir)
    _check_folder("shell_workdir", settings.shell_workdir)
    _check_url("tool_dispatch_url", settings.tool_dispatch_url)
    _check_url("search_url", settings.search.url)
    if settings.mcp_config is not None:
        _check_file("mcp_config", settings.mcp_config)


def check_switches(settings: AgentSettings, switched: Collection[str]) -> None:
    """Raise SettingsError if an option differs from its default and needs a switch that no source
    of settings sets. `switched`: the switches that a source sets, if only to be overridden."""
    for switch, names in OPTIONS_OF_SWITCHES.items():
        flag = "--" + switch.replace("_", "-")
        for name in names:
            if getattr(settings, name) != getattr(DEFAULTS, name) and switch not in switched:
                raise SettingsError(f"{name} needs {switch} ({flag} or --agent)")
    if settings.search != DEFAULTS.search and "enable_search" not in switched:
        name = next(f for f in ("engine", "url", "api_key") if _differs(settings, f))
        raise SettingsError(f"search_{name} needs enable_search (--enable-search or --agent)")
    for name in DISPATCH_OPTIONS:
        if settings.tool_dispatch_url is None and getattr(settings, name) != getattr(
            DEFAULTS, name
        ):
            raise SettingsError(f"{name} needs tool_dispatch_url")
    _check_search(settings)


def _differs(settings: AgentSettings, name: str) -> bool:
    return bool(getattr(settings.search, name) != getattr(DEFAULTS.search, name))


def _check_search(settings: AgentSettings) -> None:
    search = settings.search
    if search.engine == "searxng" and search.url is None:
        raise SettingsError("search_engine 'searxng' needs search_url, the URL of the instance")
    if search.engine != "searxng" and search.url is not None:
        raise SettingsError(
            f"search_url is only for search_engine 'searxng', not {search.engine!r}"
        )
    if search.engine == "brave" and search.api_key is None:
        raise SettingsError("search_engine 'brave' needs search_api_key or search_api_key_file")


def _check_sandbox(settings: SandboxSettings) -> None:
    for name, (least, most) in SANDBOX_RANGES.items():
        check_range(f"sb_{name}", getattr(settings, name), least, most)


def _check_executables(settings: AgentSettings) -> None:
    """Check the interpreter and the shell, if their tools are on."""
    python, shell = settings.code_exec_python, settings.shell_path
    if settings.enable_code_execution and shutil.which(python) is None:
        raise SettingsError(
            f"code_exec_python {python!r} is no executable; it must be the name or the path of a"
            " Python interpreter"
        )
    if settings.enable_shell and not (Path(shell).is_absolute() and os.access(shell, os.X_OK)):
        raise SettingsError(f"shell_path {shell!r} must be the absolute path of an executable")


def _check_folder(name: str, path: str | None) -> None:
    if path is not None and not (Path(path).is_dir() and os.access(path, os.W_OK | os.X_OK)):
        raise SettingsError(f"{name} {path!r} must be a folder that exists and is writable")


def _check_file(name: str, path: str) -> None:
    if not Path(path).is_file():
        raise SettingsError(f"{name} {path!r} is no file")
    if not os.access(path, os.R_OK):
        raise SettingsError(f"{name} {path!r} cannot be read: Permission denied")


def _check_url(name: str, url: str | None) -> None:
    """Check a URL. The message does not repeat it, because it may contain a password."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise SettingsError(f"{name} must be an http:// or https:// URL with a host")
