"""Penstock: an inference server and an embeddable engine.

`from penstock import LLM` gives the engine inside your own process; `penstock serve` gives the
server. See ARCHITECTURE.md for the rooms of the house and what may import what.
"""

from __future__ import annotations

__version__ = "0.9.1"
__all__ = ["LLM", "__version__"]

# `typing` is not imported: `penstock` must hear of Ctrl-C first.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from penstock.llm import LLM


def __getattr__(name: str) -> Any:
    """Load `LLM` on first use, so that `penstock --help` stays fast."""
    if name == "LLM":
        from penstock.llm import LLM

        return LLM
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
