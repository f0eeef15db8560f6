"""Speech models that transformers runs: VITS (also Meta's MMS), Dia and CSM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.speech.speech_files import model_type
from penstock.quant.json_file import read_json
from penstock.runtime.device_choice import choose_device
from penstock.runtime.speech.espeak import Phonemizer
from penstock.runtime.speech.speaker import Samples, Speaker, SpeakerInfo, Tokens

MAX_PIECE_TOKENS: Final = 1024
MIN_TOKENS: Final = 2
"""VITS puts blanks around every symbol, so that a text without symbols has one token."""
SPEAKER_TAGS: Final = ("S1", "S2")
SEED: Final = 1
"""Dia and CSM draw a voice for every piece. The same seed gives the pieces of a text similar
voices."""
CSM_SPEAKERS: Final = tuple(str(number) for number in range(10))
PAUSE_S: Final = 2.0
LONGEST_TOKEN_S: Final = 0.5
"""CSM may fail to stop: a piece lasts at most PAUSE_S, and this time per token."""
AUDIO_TOKENIZER: Final = "audio_tokenizer"


def load_transformers_speaker(files: ModelFiles, settings: EngineSettings) -> Speaker:
    """Return the speech model in a folder of transformers. Raises ModelError if it cannot be
    read."""
    try:
        import transformers
        from safetensors import SafetensorError
    except ImportError as error:
        raise ModelError(
            f"this speech model needs more packages: pip install 'penstock[speech-torch]' ({error})"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = torch.device(choose_device(settings))
    kind = model_type(files.path / "config.json")
    try:
        return SPEAKERS[kind](files, device)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{files.path}: transformers cannot load it: {error}") from None


def _info(files: ModelFiles, rate: int, voices: Sequence[str], weights: int) -> SpeakerInfo:
    mark = fingerprint(files)
    return SpeakerInfo(files.model_id, mark, rate, tuple(voices), weights)


def _report(info: SpeakerInfo, device: torch.device) -> str:
    return f"{info.weight_bytes / 2**20:,.0f} MiB of weights on {device}"


def _weight_bytes(*models: Any) -> int:
    parameters = (weight for model in models for weight in model.parameters())
    return sum(weight.numel() * weight.element_size() for weight in parameters)


def _samples(waveform: torch.Tensor) -> Samples:
    made: Samples = waveform.detach().float().cpu().reshape(-1).numpy()
    return made


class VitsSpeaker:
    """A `Speaker` of a VITS model. Its voices are the numbers of its speakers."""

    def __init__(self, files: ModelFiles, device: torch.device) -> None:
        from transformers import VitsModel, VitsTokenizer

        self._tokenizer = VitsTokenizer.from_pretrained(files.path, local_files_only=True)
        self._phonemizer: Phonemizer | None = None
        if self._tokenizer.phonemize:
            # The tokenizer would phonemize with an espeak-ng of the system.
            self._phonemizer = Phonemizer(("en-us",), tie=False)
            self._tokenizer.phonemize = False
            self._tokenizer.normalize = False
        model: Any = VitsModel.from_pretrained(
            files.path, use_safetensors=True, local_files_only=True
        )
        self._model = model.to(device).eval()
        self._device = device
        speakers = max(1, model.config.num_speakers)
        voices = [str(number) for number in range(speakers)]
        self.info = _info(files, model.config.sampling_rate, voices, _weight_bytes(model))
        self.report = _report(self.info, device)

    def pieces(self, sentence: str, voice: str) -> Sequence[Tokens]:
        text = sentence
        if self._phonemizer is not None:
            text = self._phonemizer.phonemes(sentence.lower(), "en-us")
        tokens = tuple(self._tokenizer(text).input_ids)
        if len(tokens) < MIN_TOKENS:
            return []
        starts = range(0, len(tokens), MAX_PIECE_TOKENS)
        return [tokens[start : start + MAX_PIECE_TOKENS] for start in starts]

    def speak(self, piece: Tokens, voice: str, speed: float) -> Samples:
        number = int(voice) if voice in self.info.voices else 0
        with torch.inference_mode():
            made = self._model(
                torch.tensor([piece], device=self._device),
                speaker_id=number,
                speaking_rate=speed,
            )
        return _samples(made.waveform)

    def close(self) -> None:
        """Do nothing: the weights are freed with this object."""


class DiaSpeaker:
    """A `Speaker` of Dia, which writes the codes of the DAC audio codec. Its voices are the tags of
    its two speakers; the tags `[S1]` and `[S2]` in a text choose them too. It cannot change its
    speed.

    The codec is in the subfolder `audio_tokenizer`, or where `audio_tokenizer_config.json` says.
    """

    def __init__(self, files: ModelFiles, device: torch.device) -> None:
        from transformers import (
            DacModel,
            DiaFeatureExtractor,
            DiaForConditionalGeneration,
            DiaProcessor,
            DiaTokenizer,
        )

        codec: Any = DacModel.from_pretrained(_codec(files.path), use_safetensors=True)
        model: Any = DiaForConditionalGeneration.from_pretrained(
            files.path, use_safetensors=True, local_files_only=True
        )
        self._tokenizer = DiaTokenizer.from_pretrained(files.path, local_files_only=True)
        features = DiaFeatureExtractor.from_pretrained(files.path, local_files_only=True)
        self._processor: Any = DiaProcessor(features, self._tokenizer, codec.to(device).eval())
        self._model = model.to(device).eval()
        self._device = device
        # The start of the codes is the same for every text.
        made = self._processor(text=[f"[{SPEAKER_TAGS[0]}]"], return_tensors="pt")
        names = ("decoder_input_ids", "decoder_attention_mask")
        self._start = {name: made[name].to(device) for name in names}
        weights = _weight_bytes(model, codec)
        self.info = _info(files, codec.config.sampling_rate, SPEAKER_TAGS, weights)
        self.report = _report(self.info, device)

    def pieces(self, sentence: str, voice: str) -> Sequence[Tokens]:
        if not any(symbol.isalnum() for symbol in sentence):
            return []
        tag = voice if voice in SPEAKER_TAGS else SPEAKER_TAGS[0]
        text = sentence if sentence.startswith("[S") else f"[{tag}] {sentence}"
        tokens = tuple(self._tokenizer(text, add_special_tokens=False).input_ids)
        return [tokens[:MAX_PIECE_TOKENS]]

    def speak(self, piece: Tokens, voice: str, speed: float) -> Samples:
        ids = torch.tensor([piece], device=self._device)
        torch.manual_seed(SEED)
        with torch.inference_mode():
            codes = self._model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), **self._start
            )
            (audio,) = self._processor.batch_decode(codes)
        return _samples(audio)

    def close(self) -> None:
        """Do nothing: the weights are freed with this object."""


class CsmSpeaker:
    """A `Speaker` of Sesame's CSM, which writes the codes of its own Mimi codec. Its voices are the
    numbers of speakers. It cannot change its speed."""

    def __init__(self, files: ModelFiles, device: torch.device) -> None:
        from transformers import AutoTokenizer, CsmForConditionalGeneration

        model: Any = CsmForConditionalGeneration.from_pretrained(
            files.path, use_safetensors=True, local_files_only=True
        )
        self._tokenizer = AutoTokenizer.from_pretrained(files.path, local_files_only=True)
        self._model = model.to(device).eval()
        self._device = device
        codec = model.codec_model.config
        self._frame_rate = codec.frame_rate
        self.info = _info(files, codec.sampling_rate, CSM_SPEAKERS, _weight_bytes(model))
        self.report = _report(self.info, device)

    def pieces(self, sentence: str, voice: str) -> Sequence[Tokens]:
        if not any(symbol.isalnum() for symbol in sentence):
            return []
        number = voice if voice in CSM_SPEAKERS else CSM_SPEAKERS[0]
        # The names of special tokens in a client's text must not act as such.
        made = self._tokenizer(f"[{number}]{sentence}", split_special_tokens=True)
        return [tuple(made.input_ids[:MAX_PIECE_TOKENS])]

    def speak(self, piece: Tokens, voice: str, speed: float) -> Samples:
        ids = torch.tensor([piece], device=self._device)
        longest_s = PAUSE_S + LONGEST_TOKEN_S * len(piece)
        torch.manual_seed(SEED)
        with torch.inference_mode():
            (audio,) = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=int(longest_s * self._frame_rate),
                output_audio=True,
            )
        return _samples(audio)

    def close(self) -> None:
        """Do nothing: the weights are freed with this object."""


SPEAKERS: Final[dict[str, Callable[[ModelFiles, torch.device], Speaker]]] = {
    "csm": CsmSpeaker,
    "dia": DiaSpeaker,
    "vits": VitsSpeaker,
}
"""`model_type` of a config.json -> the class that runs the model."""


def _codec(folder: Path) -> str:
    """Return the folder or the hub id of Dia's audio codec. Raises ModelError."""
    inside = folder / AUDIO_TOKENIZER
    if inside.is_dir():
        return str(inside)
    for name in ("audio_tokenizer_config.json", "processor_config.json"):
        if (folder / name).is_file():
            read = read_json(folder / name, dict[str, Any])
            found = read.get(AUDIO_TOKENIZER, read)
            if isinstance(found, dict) and "audio_tokenizer_name_or_path" in found:
                return str(found["audio_tokenizer_name_or_path"])
    raise ModelError(f"{folder}: Dia needs its audio codec in the subfolder {AUDIO_TOKENIZER}")
