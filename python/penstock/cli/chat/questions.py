"""Tells the model from the question on the command line of `penstock run`."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from typer import BadParameter


def split_words(
    words: Sequence[str], model: str | None, asked: str | None
) -> tuple[str | None, str | None]:
    """Return (model, question) that the words of the command line give.

    `model`: the value of `--model-id`. `asked`: the value of `--input`.

    The first word is the model if it can be one, or if it is alone and no text is piped in.
    Otherwise all words are the question. Raises BadParameter if the question is given twice.
    """
    if not words:
        return model, asked
    is_alone = len(words) == 1 and len(words[0].split()) == 1 and not has_piped_input()
    if model is None and (asked is not None or is_alone or may_be_model(words[0])):
        model, words = words[0], words[1:]
    if asked is not None and words:
        raise BadParameter(f"the question is given twice, as {words[0]!r} and by --input")
    return model, " ".join(words) or None if asked is None else asked


def may_be_model(word: str) -> bool:
    """Return whether a word can be the name of a model: a file, a folder, an id of the hub, or a
    name of the catalogue, also with a mistake in it."""
    from penstock.models.hub.catalogue import CATALOGUE

    if any(letter.isspace() for letter in word):
        return False
    if word.lower() in CATALOGUE or Path(word).expanduser().exists() or word.endswith(".gguf"):
        return True
    is_hub_id = word.count("/") == 1 and all(word.split("/"))
    return is_hub_id or bool(get_close_matches(word.lower(), CATALOGUE, n=1))


def has_piped_input() -> bool:
    """Return whether standard input is a file or a pipe."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def piped_document() -> bytes | None:
    """Return the content of standard input if it is a file or a pipe with content; None
    otherwise."""
    return sys.stdin.buffer.read() or None if has_piped_input() else None
