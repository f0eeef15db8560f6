"""Checks the packages of the extra `agent`."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.config import SettingsError


def require_package(name: str) -> None:
    """Raise SettingsError if a package that web search needs is not installed."""
    if find_spec(name) is None:
        raise SettingsError(
            f"[agent] web search needs the package {name}: pip install 'penstock[agent]'"
        )
