"""From the files of a model to what the engine and what the API side take of it.

The two are apart: an API process loads the text parts and reads no tensor, an engine process
loads spec and weights and decodes no vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.models import architectures, folder_text, gguf_text
from penstock.models.files import ModelFiles, fingerprint
from penstock.models.spec import DecoderSpec
from penstock.models.tensor_names import GGUF_NAMES, hf_names
from penstock.models.tokenizer_data import TextParts
from penstock.models.weights import DecoderWeights
from penstock.quant.gguf import GgufFile
from penstock.quant.safetensors_file import SafetensorsFolder


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose header has been checked and whose weights are read when they are packed."""

    model_id: str
    fingerprint: str
    spec: DecoderSpec
    weights: DecoderWeights


def load_model(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedModel:
    """Open a model. Raises ModelError naming file and key or tensor for an unknown architecture,
    a missing, unexpected or misshapen tensor, a corrupt file."""
    if files.kind == "gguf":
        file = GgufFile(files.path)
        spec, family = architectures.spec_of_gguf(file)
        weights = DecoderWeights(file, GGUF_NAMES, spec, dtype, family.interleaved)
    else:
        spec = architectures.spec_of_folder(files.path)
        names = hf_names(sandwich_norms=spec.sandwich_norms)
        weights = DecoderWeights(SafetensorsFolder(files.path), names, spec, dtype)
    return LoadedModel(files.model_id, fingerprint(files), spec, weights)


def load_text_parts(files: ModelFiles) -> TextParts:
    """Tokenizer, template, stop ids and sampling defaults, without reading a weight. Raises
    ModelError as `load_model` does."""
    if files.kind == "gguf":
        return gguf_text.text_parts(GgufFile(files.path), files.model_id, fingerprint(files))
    return folder_text.text_parts(files.path, files.model_id, fingerprint(files))
