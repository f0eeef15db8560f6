"""Calls of the tokenizers library, which panics where it meets what its authors ruled out.

A panic arrives as an exception that is no Exception, so that it ends whatever it passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from penstock.base.errors import InvalidRequest, ModelError

PANIC_MODULE: Final = "pyo3_runtime"

_T = TypeVar("_T")


def loaded(what: str, call: Callable[[], _T]) -> _T:
    """What a call returns that reads a part of a model. `what`: the part, as the error names it.
    Raises ModelError for whatever the library raises."""
    try:
        return call()
    except BaseException as error:  # the library raises bare Exceptions too
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ModelError(f"{what}: {error}") from None


@contextmanager
def errors_naming(where: str) -> Iterator[None]:
    """Errors of the block name the file that they are about."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def encoded(backend: Any, text: str, *, special: bool = False) -> list[int]:
    """The token ids of a text. Raises what the library raises, InvalidRequest where it panics."""
    try:
        ids: list[int] = backend.encode(text, add_special_tokens=special).ids
    except BaseException as error:
        if not is_panic(error):
            raise
        raise InvalidRequest("the model's tokenizer fails on this text") from None
    return ids


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of a library in Rust."""
    return type(error).__module__ == PANIC_MODULE
