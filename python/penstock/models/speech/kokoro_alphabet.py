"""The alphabet of Kokoro-82M: its tokens, and the phonemes of espeak-ng in its notation."""

from __future__ import annotations

import re
from typing import Final

MAX_PHONEMES: Final = 510
"""Largest number of phonemes that Kokoro speaks at once: it has one style vector per length."""

_IDS: Final = (
    *((1, ";:,.!?"), (9, '—…"()“” \u0303ʣʥʦʨᵝ\uab67AI'), (31, "O"), (33, "Q"), (35, "ST")),
    *((39, "W"), (41, "Yᵊabcdef"), (50, "hijklmnopqrstuvwxyzɑɐɒæ"), (75, "βɔɕç"), (80, "ɖðʤə")),
    *((85, "ɚɛɜ"), (90, "ɟ"), (92, "ɡ"), (99, "ɥ"), (101, "ɨɪʝ"), (110, "ɯɰŋɳɲɴø"), (118, "ɸθœ")),
    *(
        (123, "ɹ"),
        (125, "ɾɻ"),
        (128, "ʁɽʂʃʈʧ"),
        (135, "ʊʋ"),
        (138, "ʌɣɤ"),
        (142, "χʎ"),
        (147, "ʒʔ"),
    ),
    *((156, "ˈˌː"), (162, "ʰ"), (164, "ʲ"), (169, "↓"), (171, "→↗↘"), (177, "ᵻ")),
)
TOKEN_IDS: Final[dict[str, int]] = {
    symbol: first + offset for first, symbols in _IDS for offset, symbol in enumerate(symbols)
}
"""Symbol -> token id, as published with the model. 0 pads."""

# Espeak-ng language of a voice, by the first letter of the voice's name.
LANGUAGES: Final = {
    "a": "en-us",
    "b": "en-gb",
    "e": "es",
    "f": "fr-fr",
    "h": "hi",
    "i": "it",
    "j": "ja",
    "p": "pt-br",
    "z": "cmn",
}
# Kokoro writes diphthongs and affricates as one symbol. Espeak-ng joins their parts with a tie.
_JOINED: Final = {"a^ɪ": "I", "a^ʊ": "W", "d^ʒ": "ʤ", "e^ɪ": "A", "t^ʃ": "ʧ", "ɔ^ɪ": "Y"}
_OTHER_LANGUAGES: Final = _JOINED | {"d^z": "ʣ", "t^s": "ʦ", "o^ʊ": "O", "ə^ʊ": "Q", "s^s": "S"}
# Sounds that Kokoro's English has under another symbol, longest first.
_ENGLISH: Final = {
    "ʔˌn\u0329": "tᵊn",
    "ʔn\u0329": "tᵊn",
    "ʔn": "tᵊn",
    **_JOINED,
    "ə^l": "ᵊl",
    "e": "A",
    "r": "ɹ",
    "x": "k",
    "ç": "k",
    "ɐ": "ə",
    "ɚ": "əɹ",
    "ɬ": "l",
    "ʔ": "t",
    "ʲ": "",
    "\u0303": "",
}
_BRITISH: Final = {"e^ə": "ɛː", "iə": "ɪə", "ə^ʊ": "Q"}
_AMERICAN: Final = {"o^ʊ": "O", "ɜːɹ": "ɜɹ", "ɜː": "ɜɹ", "ɪə": "iə", "ː": ""}
_SYLLABIC: Final = re.compile(r"(\S)\u0329")


def kokoro_phonemes(phonemes: str, language: str) -> str:
    """Return the phonemes of espeak-ng in Kokoro's notation. `phonemes`: with "^" between the parts
    of a joined sound. `language`: a value of LANGUAGES."""
    if not language.startswith("en"):
        return _replace(phonemes, _OTHER_LANGUAGES).replace("^", "").replace("-", "")
    british = language == "en-gb"
    written = _replace(phonemes, _BRITISH) if british else phonemes
    written = _SYLLABIC.sub(r"ᵊ\1", _replace(written, _ENGLISH)).replace("\u0329", "")
    if not british:
        written = _replace(written, _AMERICAN)
    return written.replace("^", "")


def _replace(text: str, pairs: dict[str, str]) -> str:
    for old, new in pairs.items():
        text = text.replace(old, new)
    return text
