"""The registry of model families, which finds the family of a model's files and returns the model's
spec and tensor names.

Every other module of this package is a family, and declares it in `FAMILY`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import (
    AssistantFamily,
    Family,
    GgufDecoder,
    GgufEncoder,
    HfDecoder,
    HfEncoder,
)
from penstock.models.configuration.mmproj import projector_of
from penstock.models.configuration.text_backbone import (
    multimodal_architecture,
    text_backbone_config,
)
from penstock.models.decoder.mtp_layer import with_mtp
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES, HF_NAMES, TensorNames
from penstock.models.encoder.classifier import DECODER_CLASSIFIER, ClassifierSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.models.encoder.text_tower import TextTower
from penstock.models.towers.tower import MediaSpec
from penstock.quant.gguf.gguf_file import GgufFile, read_head
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_config import read_scheme

_F = TypeVar("_F")

# In a decoder, pooling_type 0 means that it generates text, and 4 that it is a reranker.
_GGUF_EMBEDDING_POOLINGS: Final = (1, 2, 3)
_GGUF_RANK: Final = 4


def _families() -> Iterator[Family]:
    package = __name__.rpartition(".")[0]
    folder = str(Path(__file__).parent)
    for name in sorted(module.name for module in iter_modules([folder])):
        if f"{package}.{name}" != __name__:
            family = import_module(f"{package}.{name}").FAMILY
            assert isinstance(family, Family), name
            yield family


FAMILIES: Final = tuple(_families())
_DECODERS: Final[Sequence[HfDecoder[Any]]] = [
    family.hf for family in FAMILIES if isinstance(family.hf, HfDecoder)
]
_ENCODERS: Final[Sequence[HfEncoder]] = [
    family.hf for family in FAMILIES if isinstance(family.hf, HfEncoder)
]

_HF_FAMILIES: Final[Sequence[HfDecoder[Any] | HfEncoder]] = [*_ENCODERS, *_DECODERS]

HF_ARCHITECTURES: Final = {
    name: family for family in _DECODERS for name in (family.architecture, *family.aliases)
}
"""Architecture in a config.json -> the decoder family, for models that generate text."""

ENCODER_ARCHITECTURES: Final = {
    name: family
    for family in _ENCODERS
    for name in (family.architecture, family.masked_lm_architecture)
}
"""Architecture in a config.json -> the encoder family. Encoders only produce embeddings."""

_HEADLESS: Final = {family.headless_architecture: family for family in _DECODERS}
_EMBEDDERS: Final[Mapping[str, HfDecoder[Any] | HfEncoder]] = (
    ENCODER_ARCHITECTURES | HF_ARCHITECTURES | _HEADLESS
)
_RERANKERS: Final[Mapping[str, HfDecoder[Any] | HfEncoder]] = {
    name: family for family in _HF_FAMILIES if (name := family.classifier_architecture) is not None
}

MODEL_TYPES: Final = {
    family.model_type or family.name: family.architecture for family in _HF_FAMILIES
}
"""`model_type` -> the architecture to assume for a config.json without `architectures`."""

GGUF_DECODERS: Final = {
    family.gguf.architecture: family.gguf
    for family in FAMILIES
    if isinstance(family.gguf, GgufDecoder)
}
GGUF_ENCODERS: Final = {
    family.gguf.architecture: family.gguf
    for family in FAMILIES
    if isinstance(family.gguf, GgufEncoder)
}

MEDIA_FAMILIES: Final = {
    family.media.architecture: family.media for family in FAMILIES if family.media is not None
}
"""Architecture of a multimodal model in a config.json -> its media side."""

PROJECTORS: Final = {
    projector: family for family in MEDIA_FAMILIES.values() for projector in family.projectors
}
"""Type of the projector in an `mmproj` GGUF file -> the media side that it has."""

ASSISTANTS: Final = {
    family.assistant.architecture: family.assistant
    for family in FAMILIES
    if family.assistant is not None
}
"""Architecture of an assistant in a config.json -> the family."""

GGUF_ASSISTANTS: Final = {
    family.gguf_architecture: family for family in ASSISTANTS.values() if family.gguf_architecture
}

_HF_NAMES: Final = {family.name: family.names for family in _DECODERS} | {
    family.gguf.architecture: family.hf.names
    for family in FAMILIES
    if isinstance(family.hf, HfDecoder) and family.gguf is not None
}
_GGUF_TWINS: Final[Mapping[str, GgufDecoder]] = {
    family.hf.name: family.gguf
    for family in FAMILIES
    if isinstance(family.hf, HfDecoder) and isinstance(family.gguf, GgufDecoder)
} | {
    family.hf.name: GGUF_DECODERS[family.gguf_of]
    for family in FAMILIES
    if isinstance(family.hf, HfDecoder) and family.gguf_of
}
_ENCODER_NAMES: Final = {family.name: family.names for family in _ENCODERS}


class _Named(msgspec.Struct):
    """The keys of a config.json that select a family. `container`: the multimodal architecture that
    contains the language model, or None."""

    architectures: list[str] | None = None
    model_type: str | None = None
    container: str | None = None

    @property
    def candidates(self) -> list[str]:
        """The architectures that the config names, or else the one that `model_type` implies."""
        if self.architectures or self.model_type not in MODEL_TYPES:
            return self.architectures or []
        return [MODEL_TYPES[self.model_type]]

    @property
    def assistant(self) -> AssistantFamily | None:
        """The family of the assistant that the config names, or None."""
        known = {family.model_type: family for family in ASSISTANTS.values()}
        found = [ASSISTANTS[name] for name in self.architectures or [] if name in ASSISTANTS]
        return found[0] if found else known.get(self.model_type or "")

    @property
    def fault(self) -> str:
        """The reason why the config selects no family. Names `architectures` and `model_type`."""
        names = ", ".join(self.candidates)
        if self.assistant is not None:
            return f"{self.assistant.architecture} only drafts for a model: name it as draft_model"
        if self.container is not None:
            return f"{self.container} over a {names or self.model_type} is not supported"
        model_type = "" if self.model_type is None else f"model_type {self.model_type!r}"
        if names:
            return f"{names} is not supported" + (f" ({model_type})" if model_type else "")
        if model_type:
            return f"architectures names none, and {model_type} is not supported"
        return "neither architectures nor model_type names a model"


def spec_of_folder(folder: Path) -> DecoderSpec:
    """Return the spec of the decoder in a Hugging Face folder. Raises ModelError naming an unknown
    architecture or the key at fault."""
    path = folder / "config.json"
    return _decoder_spec(path, _family(path, HF_ARCHITECTURES))


def is_known_folder(folder: Path) -> bool:
    """Return whether a family of ours has an architecture that the config.json of `folder`
    names."""
    named = _read_named(folder / "config.json")
    return (named.container or named.assistant) is not None or any(
        name in HF_ARCHITECTURES or name in ENCODER_ARCHITECTURES for name in named.candidates
    )


def assistant_of_folder(folder: Path) -> AssistantFamily | None:
    """Return the family of the assistant in a Hugging Face folder; None for another model."""
    return _read_named(folder / "config.json").assistant


def assistant_of_gguf(path: Path) -> AssistantFamily | None:
    """Return the family of the assistant in a GGUF file; None for another model. Raises ModelError
    if the file cannot be read."""
    name = read_head(path).get("general.architecture")
    return GGUF_ASSISTANTS.get(name) if isinstance(name, str) else None


def embedding_spec_of_folder(folder: Path) -> EncoderSpec | DecoderSpec:
    """Return the spec of the encoder in a Hugging Face folder, or of the decoder without its
    language-model head, whose states serve as embeddings. Raises ModelError as `spec_of_folder`
    does."""
    path = folder / "config.json"
    family = _family(path, _EMBEDDERS)
    if isinstance(family, HfEncoder):
        return family.read(path)
    return _without_head(_decoder_spec(path, family))


def reranker_spec_of_folder(folder: Path) -> EncoderSpec | DecoderSpec:
    """Return the spec of the encoder or decoder in a reranker's folder, without its classifier.
    Token types, if the model has them, mark the two texts of a pair. Raises ModelError as
    `spec_of_folder` does."""
    path = folder / "config.json"
    family = _family(path, _RERANKERS)
    if isinstance(family, HfDecoder):
        return _without_head(_decoder_spec(path, family))
    spec = family.read(path)
    return replace(spec, segments=2) if spec.token_types > 1 else spec


def classifier_of_folder(folder: Path) -> ClassifierSpec:
    """Return the classification head of the reranker in a Hugging Face folder. Raises ModelError
    naming the key that is not supported."""
    path = folder / "config.json"
    family = _family(path, _RERANKERS)
    if isinstance(family, HfDecoder):
        return DECODER_CLASSIFIER
    assert family.classifier is not None, "only a family with a classifier is a reranker"
    return family.classifier(path)


def is_reranker_folder(folder: Path) -> bool:
    """Return whether the config.json of `folder` names a text classifier."""
    named = _read_named(folder / "config.json")
    return any(name in _RERANKERS for name in named.candidates)


def is_encoder_folder(folder: Path) -> bool:
    """Return whether the config.json of `folder` names an encoder, which only produces
    embeddings."""
    named = _read_named(folder / "config.json")
    return any(name in ENCODER_ARCHITECTURES for name in named.candidates)


def text_tower_of_folder(folder: Path) -> TextTower | None:
    """Return the text tower of a model that embeds texts and images, without its encoder, or None
    for any other model. Raises ModelError naming the key at fault."""
    path = folder / "config.json"
    found = (ENCODER_ARCHITECTURES.get(name) for name in _read_named(path).candidates)
    family = next((family for family in found if family is not None), None)
    if family is None or family.text_tower is None:
        return None
    tower = family.text_tower(path)
    tower.check(str(path))
    return tower


def multimodal_architecture_of_folder(folder: Path) -> str | None:
    """Return the multimodal architecture that contains the language model of `folder`, or None."""
    return multimodal_architecture(read_json(folder / "config.json", dict[str, Any]))


def media_spec_of_folder(folder: Path) -> MediaSpec | None:
    """Return the media side of the model in a Hugging Face folder; None if it takes text only.
    Raises ModelError naming file and key."""
    path = folder / "config.json"
    names = read_json(path, dict[str, Any]).get("architectures") or []
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str) and name in MEDIA_FAMILIES:
            return MEDIA_FAMILIES[name].read_folder(folder)
    return None


def media_spec_of_mmproj(file: GgufFile) -> MediaSpec:
    """Return the media side in an `mmproj` GGUF file. Raises ModelError naming an unknown projector
    or the key at fault."""
    name = projector_of(file)
    family = PROJECTORS.get(name)
    if family is None or family.read_mmproj is None:
        known = ", ".join(sorted(PROJECTORS))
        raise ModelError(f"{file.path}: projector {name} is not supported, known are {known}")
    return family.read_mmproj(file)


def hf_names(spec: DecoderSpec) -> TensorNames:
    """Return the tensor names of a decoder in a Hugging Face folder. `spec` may come from a folder
    or a GGUF file."""
    return _HF_NAMES.get(spec.architecture, HF_NAMES)


def gguf_names(spec: DecoderSpec) -> TensorNames:
    """Return the tensor names of a decoder in a GGUF file, from which `spec` was read."""
    return GGUF_DECODERS[spec.architecture].names


def gguf_family(spec: DecoderSpec) -> GgufDecoder | None:
    """Return the family of the GGUF files of a model, whose spec is that of its folder; None if it
    has no GGUF form."""
    return _GGUF_TWINS.get(spec.architecture)


def gguf_twin(names: TensorNames, spec: DecoderSpec) -> TensorNames:
    """Return the names that a GGUF file of the model would have: `names` themselves if they are of
    a GGUF file, or if the model has no GGUF form."""
    twin = gguf_family(spec)
    return names if names.layer == GGUF_NAMES.layer or twin is None else twin.names


def tensor_renaming(spec: DecoderSpec, container: str | None) -> Callable[[str], str | None] | None:
    """Return the function that maps the name of a tensor in a Hugging Face folder to the name by
    which its families know it, None for a tensor that is not read; None if no name differs.
    `container`: the multimodal architecture, or None."""
    media = MEDIA_FAMILIES.get(container or "")
    own = next((one.tensor_name for one in _DECODERS if one.name == spec.architecture), None)
    outer = None if media is None else media.tensor_name
    if own is None or outer is None:
        return own or outer

    def both(name: str) -> str | None:
        shown = outer(name)
        return None if shown is None else own(shown)

    return both


def hf_encoder_names(spec: EncoderSpec) -> EncoderNames:
    """Return the tensor names of an encoder in a Hugging Face folder."""
    return _ENCODER_NAMES[spec.architecture]


def spec_of_gguf(file: GgufFile) -> tuple[DecoderSpec, GgufDecoder]:
    """Return the spec of the decoder in a GGUF file, and its family. Raises ModelError naming an
    unknown architecture or the key at fault."""
    name = file.text("general.architecture")
    family = GGUF_DECODERS.get(name)
    if family is None:
        if name in GGUF_ASSISTANTS:
            raise ModelError(f"{file.path}: {name} only drafts for a model: name it as draft_model")
        known = ", ".join(sorted(GGUF_DECODERS))
        raise ModelError(f"{file.path}: {name} is not supported, known are {known}")
    spec = family.spec(file)
    spec.check(str(file.path))
    return with_mtp(spec, family.names), family


def gguf_encoder_spec(file: GgufFile) -> EncoderSpec:
    """Return the spec of the encoder in a GGUF file, for which `is_gguf_encoder` must be true.
    Raises ModelError naming the key at fault."""
    spec = GGUF_ENCODERS[file.text("general.architecture")].spec(file)
    spec.check(str(file.path))
    return spec


def is_gguf_encoder(file: GgufFile) -> bool:
    """Return whether a GGUF file contains an encoder, which only produces embeddings."""
    return file.text("general.architecture") in GGUF_ENCODERS


def is_gguf_embedder(path: Path) -> bool:
    """Return whether a GGUF file contains an embedding model: an encoder, or a decoder with a
    `pooling_type` for embeddings. Raises ModelError if the file cannot be read."""
    head = read_head(path)
    name = head.get("general.architecture")
    return name in GGUF_ENCODERS or head.get(f"{name}.pooling_type") in _GGUF_EMBEDDING_POOLINGS


def is_gguf_reranker(path: Path) -> bool:
    """Return whether a GGUF file contains a decoder whose `pooling_type` is that of a reranker.
    Raises ModelError if the file cannot be read."""
    head = read_head(path)
    name = head.get("general.architecture")
    return name not in GGUF_ENCODERS and head.get(f"{name}.pooling_type") == _GGUF_RANK


def _family(path: Path, known: Mapping[str, _F]) -> _F:
    """Return the entry of `known` for the architecture in a config.json. This runs before the other
    keys are decoded, so that an unsupported model is refused by its name. Raises ModelError."""
    read_scheme(path)
    named = _read_named(path)
    for name in named.candidates:
        if name in known:
            return known[name]
    raise ModelError(f"{path}: {named.fault}, known are {', '.join(sorted(known))}")


def _read_named(path: Path) -> _Named:
    config = read_json(path, dict[str, Any])
    named = {**text_backbone_config(config), "container": multimodal_architecture(config)}
    try:
        return msgspec.convert(named, _Named)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from None


def _decoder_spec(path: Path, family: HfDecoder[Any]) -> DecoderSpec:
    return family.read(text_backbone_config(read_json(path, dict[str, Any])), str(path))


def _without_head(spec: DecoderSpec) -> DecoderSpec:
    """Return `spec` without a language-model head: no head tensor is expected, and the states are
    not scaled for logits."""
    return replace(spec, tied_head=True, logit_scale=1.0)
