"""Reads the token for the Hugging Face hub from the place that a token source names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from penstock.config.environment import Environment

FORMS: Final = "cache, none, literal:TOKEN, env:NAME or path:FILE"
OWN_FORMS: Final = ("env", "path")
"""The kinds of sources that read secrets of this machine, so that no client may name them."""


class TokenSourceError(ValueError):
    """A token source is unknown or has no token."""


def kind_of(source: str) -> str:
    """Return the kind of a token source, the word before the colon."""
    return source.partition(":")[0]


def read_token(source: str, environment: Environment) -> str | None:
    """Return the token of a source, None for an anonymous access. `cache` is HF_TOKEN or the file
    that the hub's own client wrote, and may be empty. Raises TokenSourceError."""
    kind, _, value = source.partition(":")
    match kind:
        case "none" if not value:
            return None
        case "cache" if not value:
            return environment.hf_token or _file_token(environment.hf_home / "token")
        case "literal" if value:
            return value
        case "env" if value:
            return _given(os.environ.get(value), source)
        case "path" if value:
            return _given(_file_token(Path(value).expanduser()), source)
        case _:
            raise TokenSourceError(f"must be one of {FORMS}")


def _given(token: str | None, source: str) -> str:
    if not token:
        raise TokenSourceError(f"{source} has no token")
    return token


def _file_token(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip() or None
    except OSError:
        return None
