"""Opens a Whisper model: spec and weights for an engine process, text parts for an API process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.config.weight_types import WeightForm
from penstock.dialog import Sampling
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.loader.model_loader import tokenizer_files
from penstock.models.tokenizer.tokenizer_data import TextParts
from penstock.models.whisper.folder import whisper_spec
from penstock.models.whisper.spec import WhisperSpec
from penstock.models.whisper.weights import WhisperWeights, quantized_forms
from penstock.quant.quantizing_checkpoint import QuantizingCheckpoint
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class LoadedWhisper:
    """A Whisper model whose header has been checked. Its weights are read when they are packed."""

    model_id: str
    fingerprint: str
    spec: WhisperSpec
    weights: WhisperWeights


def load_whisper(
    files: ModelFiles, dtype: Literal["auto", "f32"], form: WeightForm | None = None
) -> LoadedWhisper:
    """Open a Whisper model. `form`: quantize the layers' float matrices to this type, and the
    embedding to 8 bits; None: do not quantize. Raises ModelError naming file and key
    or tensor for a missing, unexpected or misshapen tensor, an unsupported key, or a corrupt
    file."""
    spec = whisper_spec(files.path)
    checkpoint = open_checkpoint(files.path, "bf16")
    if form is not None:
        checkpoint = QuantizingCheckpoint(checkpoint, quantized_forms(spec, form))
    weights = WhisperWeights(checkpoint, spec, dtype)
    return LoadedWhisper(files.model_id, fingerprint(files), spec, weights)


def load_whisper_parts(files: ModelFiles, spec: WhisperSpec) -> TextParts:
    """Return the text parts of a Whisper model. It has no chat template. Raises ModelError."""
    return TextParts(
        model_id=files.model_id,
        fingerprint=fingerprint(files),
        tokenizer=tokenizer_files(files, spec.vocab_size),
        chat_template=None,
        bos_token=None,
        eos_token=None,
        stop_ids=(spec.tokens.end,),
        generation_defaults=Sampling(),
        max_model_len=spec.max_tokens,
        vocab_size=spec.vocab_size,
    )
