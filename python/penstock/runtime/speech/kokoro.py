"""Kokoro-82M in ONNX form: phonemes of espeak-ng and a voice's style vectors to samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.speech.kokoro_alphabet import (
    LANGUAGES,
    MAX_PHONEMES,
    TOKEN_IDS,
    kokoro_phonemes,
)
from penstock.models.speech.speech_files import KokoroFiles
from penstock.quant.json_file import read_json
from penstock.runtime.speech.espeak import Phonemizer
from penstock.runtime.speech.onnx_model import OnnxModel
from penstock.runtime.speech.pieces import cut_phonemes
from penstock.runtime.speech.speaker import Samples, SpeakerInfo, Tokens

SAMPLE_RATE: Final = 24_000
STYLE_WIDTH: Final = 256
DEFAULT_VOICES: Final = ("af_heart", "af_bella")
PAD: Final = 0
STYLE_TYPE: Final = np.dtype("<f4")

Styles = npt.NDArray[np.float32]


class Kokoro:
    """A `Speaker` of a Kokoro model.

    A voice is a name such as `af_heart`, its part after the underscore (`heart`), or several of
    either joined by "+", which are averaged. The first letter of its name chooses the language.

    `threads`: threads of onnxruntime, None for all cores. Raises ModelError for invalid files.
    """

    def __init__(
        self, files: KokoroFiles, model_id: str, fingerprint: str, threads: int | None
    ) -> None:
        self._styles = _read_voices(files.voices)
        self._ids = TOKEN_IDS if files.vocabulary is None else _read_vocabulary(files.vocabulary)
        languages = tuple({_language(name) for name in self._styles})
        self._phonemizer = Phonemizer(languages, tie=True)
        self._model = OnnxModel(files.model, threads)
        self._tokens_name = "input_ids" if "input_ids" in self._model.inputs else "tokens"
        if set(self._model.inputs) != {self._tokens_name, "style", "speed"}:
            found = ", ".join(self._model.inputs)
            raise ModelError(
                f"{files.model}: the inputs of Kokoro are input_ids or tokens, style and speed,"
                f" not {found}"
            )
        integer_speed = self._model.inputs["speed"] != "tensor(float)"
        self._speed_type = np.int32 if integer_speed else np.float32
        first = next((name for name in DEFAULT_VOICES if name in self._styles), None)
        names = sorted(self._styles, key=lambda name: (name != first, name))
        size = files.model.stat().st_size
        self.info = SpeakerInfo(model_id, fingerprint, SAMPLE_RATE, tuple(names), size)
        self.report = f"{size / 2**20:,.0f} MiB of weights, voices: {len(names)}"

    def pieces(self, sentence: str, voice: str) -> Sequence[Tokens]:
        language = _language(self._names(voice)[0])
        phonemes = kokoro_phonemes(self._phonemizer.phonemes(sentence, language), language)
        known = "".join(symbol for symbol in phonemes if symbol in self._ids)
        if not any(symbol.isalpha() for symbol in known):
            return []
        return [
            tuple(self._ids[symbol] for symbol in piece)
            for piece in cut_phonemes(known, MAX_PHONEMES)
        ]

    def speak(self, piece: Tokens, voice: str, speed: float) -> Samples:
        styles = [self._styles[name] for name in self._names(voice)]
        rows = [style[min(len(piece), len(style)) - 1] for style in styles]
        return self._model.run(
            {
                self._tokens_name: np.array([[PAD, *piece, PAD]], np.int64),
                "style": np.mean(rows, axis=0, dtype=np.float32).reshape(1, STYLE_WIDTH),
                "speed": np.array([speed], self._speed_type),
            }
        )

    def close(self) -> None:
        """Do nothing: the session ends with this object."""

    def _names(self, voice: str) -> list[str]:
        """Return the voices that a request names, the default voice if it names an unknown one."""
        names = [self._known(part.strip()) for part in voice.split("+")]
        known = [name for name in names if name is not None]
        return known if len(known) == len(names) else [self.info.voices[0]]

    def _known(self, name: str) -> str | None:
        if name in self._styles:
            return name
        return next((full for full in self.info.voices if full.partition("_")[2] == name), None)


def _language(voice: str) -> str:
    return LANGUAGES.get(voice[:1], "en-us")


def _read_voices(paths: Sequence[Path]) -> dict[str, Styles]:
    """Return the style vectors [lengths, STYLE_WIDTH] of each voice. Raises ModelError."""
    voices = {}
    for path in paths:
        size = path.stat().st_size
        if size == 0 or size % (STYLE_WIDTH * STYLE_TYPE.itemsize):
            raise ModelError(f"{path}: not float32 style vectors of {STYLE_WIDTH} numbers")
        read = np.fromfile(path, STYLE_TYPE).astype(np.float32).reshape(-1, STYLE_WIDTH)
        if not np.isfinite(read).all():
            raise ModelError(f"{path}: has numbers that are not finite")
        voices[path.stem] = read
    return voices


def _read_vocabulary(path: Path) -> Mapping[str, int]:
    """Return the vocabulary of Kokoro's config.json, or of a tokenizer.json. Raises ModelError."""
    read = read_json(path, dict[str, Any])
    found = read["vocab"] if "vocab" in read else read["model"]["vocab"]
    return {str(symbol): int(number) for symbol, number in found.items() if len(symbol) == 1}
