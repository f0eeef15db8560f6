"""Limits of what an MCP server may send, and the errors for servers that exceed them."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a message of a server, images included."""

MAX_TOOLS: Final = 1024
"""Maximum number of tools per server. The rest is ignored, with a warning."""

MAX_TOOL_PAGES: Final = 100
"""Maximum number of pages of a list of tools: some servers never end theirs."""

MAX_GARBAGE_LINES: Final = 100
"""Lines without a message that a process may write in a row, for example its log."""


class ServerFault(Exception):
    """A server broke a rule. The message says which."""
