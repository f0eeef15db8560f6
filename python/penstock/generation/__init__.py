"""One model call: a request in, the events of its answer out."""

from penstock.generation.generator import Generator

__all__ = ["Generator"]
