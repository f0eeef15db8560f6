"""Penstock: an inference server and an embeddable engine.

`from penstock import LLM` imports the engine for your own process; `penstock serve` starts the
server. ARCHITECTURE.md describes the packages and the allowed imports between them.
"""

from __future__ import annotations

__version__ = "0.9.1"
__all__ = ["LLM", "__version__"]

# Like typing.TYPE_CHECKING. The module `typing` takes time to import, and `penstock` must install
# its Ctrl-C handler before that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from penstock.llm import LLM


def __getattr__(name: str) -> Any:
    """Import `LLM` when it is first used, so that `penstock --help` stays fast."""
    if name == "LLM":
        from penstock.llm import LLM

        return LLM
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
