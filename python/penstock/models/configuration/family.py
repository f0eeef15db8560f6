"""Declares a model family: the names that select it, and the functions that read its files into a
spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_encoder import gguf_encoder_spec
from penstock.models.configuration.gguf_keys import Keys, no_keys
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.unsupported_keys import HF_NEUTRAL, refuse_unsupported
from penstock.models.decoder.assistant_spec import AssistantSpec
from penstock.models.decoder.assistant_weights import AssistantNames
from penstock.models.decoder.mtp_layer import with_mtp
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES, TensorNames
from penstock.models.encoder.classifier import ClassifierSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.models.encoder.text_tower import TextTower
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile

C = TypeVar("C", bound=HfConfig)

_CAUSAL_LM = "ForCausalLM"
_CLASSIFIER = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class HfDecoder(Generic[C]):
    """A decoder family in Hugging Face folders.

    - `name`: the `architecture` of the family's specs.
    - `architecture`: the architecture in config.json, "...ForCausalLM".
    - `config`: the keys that the family reads, with its defaults. A key of HF_NEUTRAL that is a
      field of `config` may have any value.
    - `spec(config, where)`: returns the spec, or raises ModelError that starts with `where`.
    - `names`: the names of the tensors.
    - `model_type`: the `model_type` in config.json, if it is not `name`.
    - `tensor_name(name)`: returns the name by which the family knows a tensor of a folder. Without
      this function the names are those of the folder.
    - `headless`: the architecture without a language-model head, if it is not "...Model".
    - `aliases`: other architectures in config.json that mean the same.
    - `is_reranker`: whether "...ForSequenceClassification" is supported.
    """

    name: str
    architecture: str
    config: type[C]
    spec: Callable[[C, str], DecoderSpec]
    names: TensorNames = HF_NAMES
    model_type: str = ""
    headless: str = ""
    is_reranker: bool = True
    aliases: tuple[str, ...] = ()
    tensor_name: Callable[[str], str] | None = None

    @property
    def headless_architecture(self) -> str:
        """The architecture in config.json if the model was saved without its language-model
        head."""
        return self.headless or self.architecture.replace(_CAUSAL_LM, "Model")

    @property
    def classifier_architecture(self) -> str | None:
        """The architecture of the family's rerankers in config.json; None if there are none."""
        return self.architecture.replace(_CAUSAL_LM, _CLASSIFIER) if self.is_reranker else None

    def read(self, keys: Mapping[str, Any], where: str) -> DecoderSpec:
        """Convert the keys of a config.json to a spec. Raises ModelError that starts with `where`
        and names the key at fault."""
        known = self.config.__struct_fields__
        neutral = {key: values for key, values in HF_NEUTRAL.items() if key not in known}
        refuse_unsupported(where, keys, neutral)
        try:
            config = msgspec.convert(keys, self.config)
        except msgspec.ValidationError as error:
            raise ModelError(f"{where}: {error}") from None
        spec = replace(self.spec(config, where), architecture=self.name)
        spec.check(where)
        return with_mtp(spec, self.names)


@dataclass(frozen=True, slots=True)
class HfEncoder:
    """An encoder family in Hugging Face folders.

    - `name`: the `architecture` of the family's specs.
    - `architecture`: the architecture in config.json, "...Model". The same weights may be saved as
      "...ForMaskedLM".
    - `spec(path)`: reads a config.json.
    - `names`: the names of the tensors.
    - `classifier(path)`: reads the classification head of a reranker,
      "...ForSequenceClassification", from its config.json; None if the family has no rerankers.
    - `model_type`: the `model_type` in config.json, if it is not `name`.
    - `text_tower(path)`: reads the projection of texts from a config.json; None unless the family
      embeds texts and images into one space.
    """

    name: str
    architecture: str
    spec: Callable[[Path], EncoderSpec]
    names: EncoderNames
    classifier: Callable[[Path], ClassifierSpec] | None = None
    model_type: str = ""
    text_tower: Callable[[Path], TextTower] | None = None

    @property
    def masked_lm_architecture(self) -> str:
        """The architecture in config.json if the model was saved with its masked-language-model
        head."""
        return f"{self._stem}ForMaskedLM"

    @property
    def classifier_architecture(self) -> str | None:
        """The architecture of the family's rerankers in config.json; None if there are none."""
        return None if self.classifier is None else f"{self._stem}{_CLASSIFIER}"

    @property
    def _stem(self) -> str:
        return self.architecture.removesuffix("Model")

    def read(self, path: Path) -> EncoderSpec:
        """Read the spec from a config.json. Raises ModelError naming the key at fault."""
        spec = replace(self.spec(path), architecture=self.name)
        spec.check(str(path))
        return spec


@dataclass(frozen=True, slots=True)
class GgufDecoder:
    """A decoder family in GGUF files.

    - `architecture`: the value of `general.architecture`.
    - `spec(file)`: reads the spec from the metadata.
    - `names`: the names of the tensors if q, k and v are separate.
    - `permuted_qk`: llama.cpp's converter permutes the rows of q and k for a rotation of
      neighbouring components, which the family itself does not use.
    - `keys(spec)`: returns the metadata that are written beside those of `gguf_decoder_keys`, or
      instead of them: what `spec` reads itself.
    - `is_written`: folders of the family are written as GGUF files.
    """

    architecture: str
    spec: Callable[[GgufFile], DecoderSpec] = gguf_decoder_spec
    names: TensorNames = GGUF_NAMES
    permuted_qk: bool = False
    keys: Callable[[DecoderSpec], Keys] = no_keys
    is_written: bool = True


@dataclass(frozen=True, slots=True)
class GgufEncoder:
    """An encoder family in GGUF files. `architecture`: the value of `general.architecture`.
    `spec(file)`: reads the spec from the metadata."""

    architecture: str
    spec: Callable[[GgufFile], EncoderSpec] = gguf_encoder_spec


@dataclass(frozen=True, slots=True)
class MediaFamily:
    """The media side of a multimodal family; its language model is a family of its own.

    - `architecture`: the architecture in config.json.
    - `read_folder(folder)`: reads the spec from the JSON files of a Hugging Face folder. Raises
      ModelError naming file and key.
    - `projectors`: values of `clip.projector_type` in `mmproj` GGUF files.
    - `read_mmproj(file)`: reads the spec from the metadata of an `mmproj` GGUF file.
    - `tensor_name(name)`: returns the name by which the family knows a tensor of a folder; None:
      the tensor is not read. Without this function the names are those of the folder.
    """

    architecture: str
    read_folder: Callable[[Path], MediaSpec]
    projectors: tuple[str, ...] = ()
    read_mmproj: Callable[[GgufFile], MediaSpec] | None = None
    tensor_name: Callable[[str], str | None] | None = None


@dataclass(frozen=True, slots=True)
class AssistantFamily:
    """The assistants of a family, which draft for its models.

    - `architecture`, `model_type`: those in config.json.
    - `read_keys(keys, where)`: reads the spec from the keys of a config.json. Raises ModelError
      that starts with `where` and names the key at fault.
    - `names`: the names of the tensors of a folder.
    - `gguf_architecture`, `read_gguf(file)`, `gguf_names`: the same for GGUF files; "", None and
      None without.
    - `targets`: the `architecture` of the specs of models for which they draft.
    """

    architecture: str
    model_type: str
    read_keys: Callable[[Mapping[str, Any], str], AssistantSpec]
    names: AssistantNames
    targets: tuple[str, ...]
    gguf_architecture: str = ""
    read_gguf: Callable[[GgufFile], AssistantSpec] | None = None
    gguf_names: AssistantNames | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """A model family, with its declarations for Hugging Face folders (`hf`), GGUF files (`gguf`),
    media (`media`) and assistants (`assistant`). `gguf_of`: the architecture of its GGUF files, if
    another family reads them."""

    hf: HfDecoder[Any] | HfEncoder | None = None
    gguf: GgufDecoder | GgufEncoder | None = None
    media: MediaFamily | None = None
    assistant: AssistantFamily | None = None
    gguf_of: str = ""
