"""Counts the uses of the web tools in one run."""

from __future__ import annotations


class Uses:
    """Counts searches and page retrievals. `max_uses`: None for no limit."""

    def __init__(self, max_uses: int | None) -> None:
        self._max_uses = max_uses
        self._used = 0

    def use(self) -> str | None:
        """Count a use. Returns None, or a message for the model if the limit is reached."""
        if self._max_uses is not None and self._used >= self._max_uses:
            return (
                f"the limit of {self._max_uses} web searches and page retrievals is reached; "
                "answer with what is known"
            )
        self._used += 1
        return None
