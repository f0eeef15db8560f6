"""Piper voices: VITS models in ONNX form with a table of phoneme ids."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.speech.speech_files import piper_config
from penstock.quant.json_file import read_json
from penstock.runtime.speech.espeak import Phonemizer
from penstock.runtime.speech.onnx_model import OnnxModel
from penstock.runtime.speech.pieces import cut_phonemes
from penstock.runtime.speech.speaker import Samples, SpeakerInfo, Tokens

PAD: Final = "_"
START: Final = "^"
END: Final = "$"
MAX_PHONEMES: Final = 400
"""Most phonemes of a piece. The model has no limit, but memory grows with the length."""


class _Audio(msgspec.Struct):
    sample_rate: int


class _Espeak(msgspec.Struct):
    voice: str = "en-us"


class _Inference(msgspec.Struct):
    noise_scale: float = 0.667
    length_scale: float = 1.0
    noise_w: float = 0.8


class _PiperConfig(msgspec.Struct):
    """The fields of a voice's `.onnx.json` that speech needs."""

    audio: _Audio
    phoneme_id_map: dict[str, list[int]]
    espeak: _Espeak = msgspec.field(default_factory=_Espeak)
    inference: _Inference = msgspec.field(default_factory=_Inference)
    phoneme_type: Literal["espeak", "text"] = "espeak"
    num_speakers: int = 1
    speaker_id_map: dict[str, int] = msgspec.field(default_factory=dict)


class Piper:
    """A `Speaker` of a Piper voice. Its voices are its speakers; a voice with one speaker has the
    name of its file. `threads`: threads of onnxruntime, None for all cores. Raises ModelError for
    invalid files."""

    def __init__(self, model: Path, model_id: str, fingerprint: str, threads: int | None) -> None:
        path = piper_config(model)
        self._config = config = read_json(path, _PiperConfig)
        missing = [symbol for symbol in (PAD, START, END) if symbol not in config.phoneme_id_map]
        if missing:
            raise ModelError(f"{path}: phoneme_id_map has no {missing[0]!r}")
        self._phonemizer: Phonemizer | None = None
        if config.phoneme_type == "espeak":
            self._phonemizer = Phonemizer((config.espeak.voice,), tie=False)
        self._model = OnnxModel(model, threads)
        unknown = set(self._model.inputs) - {"input", "input_lengths", "scales", "sid"}
        if unknown:
            raise ModelError(f"{model}: not a Piper voice: it has an input {min(unknown)!r}")
        self._speakers = config.speaker_id_map
        names = tuple(self._speakers) or (model.stem,)
        size = model.stat().st_size
        rate = config.audio.sample_rate
        self.info = SpeakerInfo(model_id, fingerprint, rate, names, size)
        self.report = f"{size / 2**20:,.0f} MiB of weights, voices: {len(names)}"

    def pieces(self, sentence: str, voice: str) -> Sequence[Tokens]:
        if self._phonemizer is None:
            phonemes = sentence
        else:
            phonemes = self._phonemizer.phonemes(sentence, self._config.espeak.voice)
        known = self._config.phoneme_id_map
        symbols = unicodedata.normalize("NFD", phonemes)
        spoken = "".join(symbol for symbol in symbols if symbol in known)
        if not any(symbol.isalpha() for symbol in spoken):
            return []
        return [self._tokens(piece) for piece in cut_phonemes(spoken, MAX_PHONEMES)]

    def speak(self, piece: Tokens, voice: str, speed: float) -> Samples:
        config = self._config.inference
        scales = [config.noise_scale, config.length_scale / speed, config.noise_w]
        inputs: dict[str, npt.NDArray[Any]] = {
            "input": np.array([piece], np.int64),
            "input_lengths": np.array([len(piece)], np.int64),
            "scales": np.array(scales, np.float32),
        }
        if "sid" in self._model.inputs:
            first = next(iter(self._speakers.values()), 0)
            inputs["sid"] = np.array([self._speakers.get(voice, first)], np.int64)
        return self._model.run(inputs)

    def close(self) -> None:
        """Do nothing: the session ends with this object."""

    def _tokens(self, phonemes: str) -> Tokens:
        """Return the ids of phonemes: start, each phoneme followed by padding, end."""
        ids = self._config.phoneme_id_map
        pad = ids[PAD]
        tokens = [*ids[START], *pad]
        for symbol in phonemes:
            tokens += [*ids[symbol], *pad]
        return (*tokens, *ids[END])
