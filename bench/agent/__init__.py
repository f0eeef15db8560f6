"""`python -m bench agent`: the tools that the server runs, in their sandbox."""

from bench.agent.command import main

__all__ = ["main"]
