"""`python -m bench media`: encoding of images."""

from bench.media.command import main

__all__ = ["main"]
