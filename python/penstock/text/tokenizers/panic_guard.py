"""Guards calls of the tokenizers library, which can panic.

PyO3 raises a Rust panic as a BaseException that is not an Exception. The functions here convert the
panic to a ModelError or InvalidRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from penstock.base.errors import InvalidRequest, ModelError

PANIC_MODULE: Final = "pyo3_runtime"

_T = TypeVar("_T")


def load_or_model_error(what: str, call: Callable[[], _T]) -> _T:
    """Return the result of `call`, which reads a part of a model.

    Raises ModelError for any error or panic of the library. The message starts with `what`.
    """
    try:
        return call()
    except BaseException as error:  # the library raises plain Exceptions too
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise ModelError(f"{what}: {error}") from None


@contextmanager
def errors_naming(where: str) -> Iterator[None]:
    """Return a context that prefixes the messages of ModelErrors raised in it with the file
    `where`."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None


def encode_or_refuse(backend: Any, text: str, *, special: bool = False) -> list[int]:
    """Return the token ids of a text. Raises InvalidRequest if the library panics, and the
    library's own errors. `special`: add the special tokens around the text."""
    try:
        ids: list[int] = backend.encode(text, add_special_tokens=special).ids
    except BaseException as error:
        if not is_panic(error):
            raise
        raise InvalidRequest("the model's tokenizer fails on this text") from None
    return ids


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of a Rust library."""
    return type(error).__module__ == PANIC_MODULE
