"""Runs one model call: turns a request into the events of its answer."""

from penstock.generation.generator import Generator

__all__ = ["Generator"]
