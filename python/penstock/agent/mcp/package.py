"""Loads the official package `mcp`, an optional dependency."""

from __future__ import annotations

import logging

from penstock.config import SettingsError


def load_package(needed_by: str) -> None:
    """Import the package `mcp`, which takes 0.5 s. Raises SettingsError, which names `needed_by`,
    if it is not installed."""
    try:
        import mcp.client.sse
        import mcp.server.lowlevel  # noqa: F401
    except ImportError as error:
        raise SettingsError(
            f"{needed_by} needs the package `mcp`: pip install 'penstock[agent]' ({error})"
        ) from None
    # The package logs a traceback for each bad answer of a server. Without a handler of its own,
    # Python would print them.
    for name in ("mcp", "client"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
