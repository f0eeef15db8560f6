"""Turns text into phonemes with espeak-ng."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.base.errors import ModelError

if TYPE_CHECKING:
    from phonemizer.backend import EspeakBackend

EXTRA: Final = "this speech model needs more packages: pip install 'penstock[speech]'"
# Punctuation that stays in the phonemes. A point or comma between digits is part of a number.
PUNCTUATION: Final = re.compile(r'(?<!\d)[.,]|[.,](?!\d)|[;:!?¡¿—…"«»“”()]')
SPACES: Final = re.compile(r"\s+")


class Phonemizer:
    """Phonemizes texts in several languages, which are loaded when they are first used.

    `tie`: mark the joined parts of a sound with "^".

    Raises ModelError if a library is not installed, or does not know `languages`.
    """

    def __init__(self, languages: tuple[str, ...], *, tie: bool) -> None:
        try:
            import espeakng_loader
            from phonemizer.backend import EspeakBackend
            from phonemizer.backend.espeak.wrapper import EspeakWrapper
        except ImportError as error:
            raise ModelError(f"{EXTRA} ({error})") from None
        EspeakWrapper.set_library(espeakng_loader.get_library_path())
        EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
        self._make = EspeakBackend
        self._tie = tie
        known = EspeakBackend.supported_languages()
        missing = sorted(set(languages).difference(known))
        if missing:
            raise ModelError(f"espeak-ng does not know the language {missing[0]!r} of this voice")
        self._backends: dict[str, EspeakBackend] = {}

    def phonemes(self, text: str, language: str) -> str:
        """Return the phonemes of a text with its punctuation, "" if there are none."""
        backend = self._backends.get(language)
        if backend is None:
            backend = self._backends[language] = self._make(
                language,
                punctuation_marks=PUNCTUATION,
                preserve_punctuation=True,
                with_stress=True,
                tie="^" if self._tie else False,
                language_switch="remove-flags",
            )
        plain = SPACES.sub(" ", text).strip()
        made = backend.phonemize([plain], strip=True) if plain else []
        return "".join(made)
