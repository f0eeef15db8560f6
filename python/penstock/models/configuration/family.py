"""The declaration of a model family: the names that select it, and how its files become a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.gguf_decoder import gguf_decoder_spec
from penstock.models.configuration.gguf_encoder import gguf_encoder_spec
from penstock.models.configuration.hf_config import HfConfig
from penstock.models.configuration.unsupported_keys import HF_NEUTRAL, refuse_unsupported
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES, TensorNames
from penstock.models.encoder.classifier import ClassifierSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.quant.gguf.gguf_file import GgufFile

C = TypeVar("C", bound=HfConfig)

_CAUSAL_LM = "ForCausalLM"
_CLASSIFIER = "ForSequenceClassification"


@dataclass(frozen=True, slots=True)
class HfDecoder(Generic[C]):
    """A decoder family in Hugging Face folders.

    `name`: the `architecture` of its specs. `architecture`: of config.json, "...ForCausalLM".
    `config`: the keys that the family reads, with its defaults; a key of HF_NEUTRAL that is a field
    of it is not refused. `spec(config, where)` returns the spec or raises ModelError that starts
    with `where`. `names`: of its tensors. `model_type`: of config.json, if it is not `name`.
    `headless`: the architecture without a language-model head, if it is not "...Model".
    `is_reranker`: "...ForSequenceClassification" is supported.
    """

    name: str
    architecture: str
    config: type[C]
    spec: Callable[[C, str], DecoderSpec]
    names: TensorNames = HF_NAMES
    model_type: str = ""
    headless: str = ""
    is_reranker: bool = True

    @property
    def headless_architecture(self) -> str:
        """The architecture of a model that was saved without its language-model head."""
        return self.headless or self.architecture.replace(_CAUSAL_LM, "Model")

    @property
    def classifier_architecture(self) -> str | None:
        """The architecture of a reranker; None if the family has none."""
        return self.architecture.replace(_CAUSAL_LM, _CLASSIFIER) if self.is_reranker else None

    def read(self, keys: Mapping[str, Any], where: str) -> DecoderSpec:
        """Return the spec that the keys of a config.json mean. Raises ModelError that starts with
        `where` and names the key at fault."""
        known = self.config.__struct_fields__
        neutral = {key: values for key, values in HF_NEUTRAL.items() if key not in known}
        refuse_unsupported(where, keys, neutral)
        try:
            config = msgspec.convert(keys, self.config)
        except msgspec.ValidationError as error:
            raise ModelError(f"{where}: {error}") from None
        spec = replace(self.spec(config, where), architecture=self.name)
        spec.check(where)
        return spec


@dataclass(frozen=True, slots=True)
class HfEncoder:
    """An encoder family in Hugging Face folders.

    `name`: the `architecture` of its specs. `architecture`: of config.json, "...Model"; the same
    weights are also saved as "...ForMaskedLM". `spec(path)` reads a config.json. `names`: of its
    tensors. `classifier(path)` returns the head of a reranker, "...ForSequenceClassification", from
    its config.json; None: this family has no rerankers. `model_type`: of config.json, if it is not
    `name`.
    """

    name: str
    architecture: str
    spec: Callable[[Path], EncoderSpec]
    names: EncoderNames
    classifier: Callable[[Path], ClassifierSpec] | None = None
    model_type: str = ""

    @property
    def masked_lm_architecture(self) -> str:
        """The architecture of a model that was saved with the head of its pre-training."""
        return f"{self._stem}ForMaskedLM"

    @property
    def classifier_architecture(self) -> str | None:
        """The architecture of a reranker; None if the family has none."""
        return None if self.classifier is None else f"{self._stem}{_CLASSIFIER}"

    @property
    def _stem(self) -> str:
        return self.architecture.removesuffix("Model")

    def read(self, path: Path) -> EncoderSpec:
        """Return the spec of a config.json. Raises ModelError naming the key at fault."""
        spec = replace(self.spec(path), architecture=self.name)
        spec.check(str(path))
        return spec


@dataclass(frozen=True, slots=True)
class GgufDecoder:
    """A decoder family in GGUF files.

    `architecture`: `general.architecture`. `spec(file)` reads the metadata. `names`: of its
    tensors, with q, k and v apart. `permuted_qk`: llama.cpp's converter permutes the rows of q and
    k, for a rotation of neighbours that the family does not have.
    """

    architecture: str
    spec: Callable[[GgufFile], DecoderSpec] = gguf_decoder_spec
    names: TensorNames = GGUF_NAMES
    permuted_qk: bool = False


@dataclass(frozen=True, slots=True)
class GgufEncoder:
    """An encoder family in GGUF files: `general.architecture`, and what reads its metadata."""

    architecture: str
    spec: Callable[[GgufFile], EncoderSpec] = gguf_encoder_spec


@dataclass(frozen=True, slots=True)
class Family:
    """A model family, in one or both file formats."""

    hf: HfDecoder[Any] | HfEncoder | None = None
    gguf: GgufDecoder | GgufEncoder | None = None
