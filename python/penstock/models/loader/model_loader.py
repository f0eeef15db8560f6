"""Opens the files of a model: spec and weights for an engine process, text parts for an API
process.

The two are loaded separately: an API process reads no tensors, and an engine process does not
decode the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.config.weight_types import WIDE, WeightForm
from penstock.models.checkpoint.check_shapes import NO_TENSORS, Shape
from penstock.models.checkpoint.random_checkpoint import RandomCheckpoint
from penstock.models.configuration.family import GgufDecoder
from penstock.models.configuration.gguf_encoder import gguf_pooler_spec
from penstock.models.configuration.text_backbone import non_text_bytes, text_backbone_names
from penstock.models.decoder import per_layer_inputs
from penstock.models.decoder.layer_weights import Weights
from penstock.models.decoder.mtp_weights import MtpWeights, mtp_tensors
from penstock.models.decoder.predicting_head import HeadWeights
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import TensorNames, gguf_names, headless_names
from penstock.models.decoder.tensor_shapes import ignored_bytes, quantizable_names
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.encoder.dense import DenseLayer, read_dense
from penstock.models.encoder.sentence_transformers import (
    PoolerSpec,
    is_sentence_transformers_folder,
    pooler_spec,
)
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import gguf_encoder_names
from penstock.models.encoder.weights import EncoderWeights
from penstock.models.families import registry
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.loader.folder_tensors import (
    folder_names,
    open_folder_decoder,
    unfuse_experts,
)
from penstock.models.loader.importance_names import importance_by_tensor
from penstock.models.loader.media import media_spec, open_towers
from penstock.models.tokenizer import gguf_tokenizer, hf_tokenizer
from penstock.models.tokenizer.special_tokens import read_special_tokens
from penstock.models.tokenizer.tokenizer_data import (
    EmbeddingParts,
    TextForm,
    TextParts,
    TokenizerFiles,
)
from penstock.models.towers.tower import LoadedTower, MediaSpec
from penstock.quant.checkpoint import Checkpoint, Device, extra_bytes, size_note
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.importance import ImportanceMatrix
from penstock.quant.quantizing_checkpoint import NOTHING_KNOWN, QuantizingCheckpoint
from penstock.quant.rest import Rest, no_rest
from penstock.quant.safetensors.float8_checkpoint import Float8Storage
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A text-generating model whose header has been checked. Its weights are read when they are
    packed.

    - `extra_bytes`: the bytes that the weights need beyond the size of their files; negative if
      parts of the files are not read.
    - `load_note`: the reason for `extra_bytes`, and parts of the files that are not used, for the
      log line about memory.
    - `media_spec`: the processor and the towers; None if the model reads only text.
    - `media`: the opened towers, in the order of `media_spec.towers`.
    - `mtp`: the MTP head, None unless it was asked for; or the assistant.
    - `num_quantized`: the number of matrices that are quantized when they are read.
    - `draft_ids`: the tokens of the draft head (`models.decoder.draft_head`) of the MTP head or the
      assistant or, without these, of the model itself; None: there is none.
    - `folder`: the folder of the weights, which may hold scales of an FP8 KV cache; None for GGUF.
    """

    model_id: str
    fingerprint: str
    spec: DecoderSpec
    weights: Weights
    extra_bytes: int = 0
    load_note: str = ""
    media_spec: MediaSpec | None = None
    media: tuple[LoadedTower, ...] = ()
    mtp: HeadWeights | None = None
    num_quantized: int = 0
    draft_ids: npt.NDArray[np.int32] | None = None
    folder: Path | None = None

    @property
    def own_draft_ids(self) -> npt.NDArray[np.int32] | None:
        """The tokens of the draft head that is packed with the model's own language-model head."""
        return self.draft_ids if self.mtp is None or self.mtp.shares_head else None


@dataclass(frozen=True, slots=True)
class LoadedEmbedder:
    """An embedding model or reranker whose header has been checked.

    - `weights`: the encoder or decoder. They are read when they are packed.
    - `dense`: the linear layers after pooling.
    - `extra_bytes`, `media_spec`, `media`: see `LoadedModel`.
    """

    model_id: str
    fingerprint: str
    spec: EncoderSpec | DecoderSpec
    weights: EncoderWeights | DecoderWeights
    pooler: PoolerSpec
    dense: tuple[DenseLayer, ...]
    extra_bytes: int = 0
    media_spec: MediaSpec | None = None
    media: tuple[LoadedTower, ...] = ()


def is_embedding_model(files: ModelFiles) -> bool:
    """Return whether a model is an embedding model: an encoder, a sentence-transformers folder, or
    a GGUF file with a `pooling_type` for embeddings. Raises ModelError if the files cannot be
    read."""
    if files.kind == "gguf":
        return registry.is_gguf_embedder(files.path)
    return is_sentence_transformers_folder(files.path) or registry.is_encoder_folder(files.path)


def load_embedder(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    """Open an embedding model. Raises ModelError as `load_model` does."""
    if files.kind == "gguf":
        return _load_gguf_embedder(files, dtype)
    pooler = pooler_spec(files.path)
    spec = registry.embedding_spec_of_folder(files.path)
    checkpoint = open_backbone(files, dtype)
    media = media_spec(files)
    width = spec.hidden_size
    dense = []
    for folder in pooler.dense:
        dense.append(read_dense(folder, width))
        width = dense[-1].linear.shape[0]
    return LoadedEmbedder(
        model_id=files.model_id,
        fingerprint=fingerprint(files),
        spec=spec,
        weights=backbone_weights(checkpoint, spec, dtype),
        pooler=pooler,
        dense=tuple(dense),
        extra_bytes=0 if dtype == "f32" else _extra_bytes(files, checkpoint),
        media_spec=media,
        media=open_towers(files, media, checkpoint, spec.hidden_size, dtype),
    )


def _extra_bytes(files: ModelFiles, checkpoint: Checkpoint) -> int:
    """Return the bytes that the weights of an embedding model need beyond the size of the files.
    Towers are counted apart."""
    container = registry.multimodal_architecture_of_folder(files.path)
    other = 0 if container is None else non_text_bytes(checkpoint.tensors)
    return extra_bytes(checkpoint) - other


def open_backbone(files: ModelFiles, dtype: Literal["auto", "f32"]) -> Checkpoint:
    """Open the checkpoint in the folder of an embedding model or reranker. Raises ModelError if a
    file is invalid."""
    return open_checkpoint(files.path, _float8_storage("bf16", dtype))


def backbone_weights(
    checkpoint: Checkpoint,
    spec: EncoderSpec | DecoderSpec,
    dtype: Literal["auto", "f32"],
    also_expected: Mapping[str, Shape] = NO_TENSORS,
) -> EncoderWeights | DecoderWeights:
    """Return the weights of the encoder in a folder, or of its decoder without the language-model
    head. `also_expected`: further tensors that must exist, which the caller reads. Raises
    ModelError naming a tensor that is missing, unexpected or of the wrong shape."""
    if isinstance(spec, EncoderSpec):
        names = registry.hf_encoder_names(spec)
        return EncoderWeights(checkpoint, names, spec, dtype, also_expected)
    decoder_names = registry.hf_names(spec)
    if "embed_tokens.weight" in checkpoint.tensors:
        decoder_names = headless_names(decoder_names)
    elif non_text_bytes(checkpoint.tensors):
        decoder_names = text_backbone_names(decoder_names, checkpoint.tensors)
    ordered = unfuse_experts(checkpoint, spec)
    return DecoderWeights(ordered, decoder_names, spec, dtype, also_expected=also_expected)


def _load_gguf_embedder(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    file = GgufFile(files.path)
    spec: EncoderSpec | DecoderSpec
    weights: EncoderWeights | DecoderWeights
    if registry.is_gguf_encoder(file):
        spec = registry.gguf_encoder_spec(file)
        weights = EncoderWeights(file, gguf_encoder_names(file.tensors), spec, dtype)
    else:
        spec, family = registry.spec_of_gguf(file)
        spec = replace(spec, logit_scale=1.0)
        weights = gguf_weights(file, spec, family, dtype)
    pooler = gguf_pooler_spec(file)
    extra = 0 if dtype == "f32" else extra_bytes(file)
    return LoadedEmbedder(files.model_id, fingerprint(files), spec, weights, pooler, (), extra)


def gguf_weights(
    file: GgufFile,
    spec: DecoderSpec,
    family: GgufDecoder,
    dtype: Literal["auto", "f32"],
    also_expected: Mapping[str, Shape] = NO_TENSORS,
) -> DecoderWeights:
    """Return the weights of the decoder in a GGUF file. `also_expected`: see `backbone_weights`.
    Raises ModelError as `backbone_weights` does."""
    names = gguf_names(family.names, file.tensors)
    return DecoderWeights(file, names, spec, dtype, family.permuted_qk, also_expected)


def load_embedding_parts(files: ModelFiles) -> EmbeddingParts:
    """Read the tokenizer and the prompt of an embedding model without its weights. Raises
    ModelError if a file is invalid or not supported."""
    if files.kind == "gguf":
        file = GgufFile(files.path)
        data, encodes = gguf_tokenizer.tokenizer_data(file), registry.is_gguf_encoder(file)
        if encodes and data.model != "bert":
            raise ModelError(
                f"{files.path}: tokenizer.ggml.model {data.model!r} is not supported for encoders,"
                " only bert"
            )
        return EmbeddingParts(
            files.model_id, fingerprint(files), data, "", supports_lora=not encodes
        )
    pooler = pooler_spec(files.path)
    vocab = registry.embedding_spec_of_folder(files.path).vocab_size
    source = tokenizer_files(files, vocab, "lower case" if pooler.lower_case else "as given")
    supports_lora = not registry.is_encoder_folder(files.path)
    return EmbeddingParts(
        files.model_id,
        fingerprint(files),
        source,
        pooler.prompt,
        supports_lora,
        templated=pooler.templated,
    )


def tokenizer_files(files: ModelFiles, vocab: int, form: TextForm = "as given") -> TokenizerFiles:
    """Return the tokenizer files of a folder. `vocab`: the number of rows of the model's embedding.
    Raises ModelError if tokenizer.json is missing."""
    tokenizer = files.path / "tokenizer.json"
    if not tokenizer.exists():
        raise ModelError(f"{files.path}: tokenizer.json is missing")
    declared = read_special_tokens(files.path).declared
    return TokenizerFiles(tokenizer, vocab, declared, form)


def load_model(
    files: ModelFiles,
    dtype: Literal["auto", "f32"],
    float8: Float8Storage = "bf16",
    form: WeightForm | None = None,
    mtp: Literal["ignored", "required"] = "ignored",
    importance: ImportanceMatrix | None = None,
    threads: int = 1,
    values: Literal["stored", "random"] = "stored",
    rest: Rest = no_rest,
) -> LoadedModel:
    """Open a model that generates text, and its towers if its family has a media side.

    - `float8`: the type as which matrices of 8-bit floats are read. CPU kernels do not support
      "float8".
    - `form`: quantize the layers' float matrices to this type, and the embedding and language-model
      head to 8 bits; None: do not quantize.
    - `importance`: how much the columns of matrices matter in their quantization.
    - `threads`: the number of threads that quantize.
    - `mtp`: whether the MTP head is opened too. It is not quantized, and `extra_bytes` does not
      count it.
    - `values`: "random": the weights have the layouts of the file and random values, to measure
      their speed; only the headers of the files are read.
    - `rest`: called while weights are quantized.

    Raises ModelError naming file and key or tensor for an unknown architecture, a missing,
    unexpected or misshapen tensor, or a corrupt file.
    """
    checkpoint: Checkpoint
    read: Checkpoint
    container = None
    media = media_spec(files)
    if files.kind == "gguf":
        checkpoint = file = GgufFile(files.path)
        spec, family = registry.spec_of_gguf(file)
        read, permuted_qk = checkpoint, family.permuted_qk
        names = gguf_names(family.names, file.tensors)
    else:
        opened = open_folder_decoder(files.path, _float8_storage(float8, dtype))
        spec, names, container = opened.spec, opened.names, opened.container
        checkpoint, read, permuted_qk = opened.checkpoint, opened.unfused, False
    head = None
    if mtp == "required":
        head = _open_mtp(checkpoint, names, spec, dtype, container, permuted_qk)
    rounded = None
    if form is not None:
        columns = NOTHING_KNOWN
        if importance is not None:
            columns = importance_by_tensor(importance, names, spec)
        forms = quantized_forms(names, spec, form)
        read = rounded = QuantizingCheckpoint(read, forms, columns, threads, rest)
    if values == "random":
        read = RandomCheckpoint(read)
    weights = DecoderWeights(read, names, spec, dtype, permuted_qk)
    if spec.bidirectional:
        raise ModelError(
            f"{files.path}: the model is bidirectional (attention.causal, is_causal or"
            " use_bidirectional_attention): it can make embeddings but not generate text"
        )
    extra = 0
    if dtype != "f32":
        extra = extra_bytes(checkpoint) + weights.widened_bytes()
        extra -= ignored_bytes(checkpoint.tensors, names, spec)
    if rounded is not None:
        extra -= rounded.saved_bytes
    if container is not None and files.mmproj is None and not non_text_bytes(checkpoint.tensors):
        media = None  # the towers have been left out
    device: Device = "gpu" if float8 == "float8" else "cpu"
    notes = [
        "" if dtype == "f32" else size_note(checkpoint, device),
        _container_note(container if media is None else None),
        "" if form is None else f"; float weights of layers are quantized to {form}",
        "" if head is None else _heads_note(spec),
    ]
    return LoadedModel(
        model_id=files.model_id,
        fingerprint=fingerprint(files),
        spec=spec,
        weights=weights,
        extra_bytes=extra,
        load_note="".join(notes),
        media_spec=media,
        media=open_towers(files, media, checkpoint, spec.hidden_size, dtype),
        mtp=head,
        num_quantized=0 if rounded is None else rounded.num_quantized,
        folder=None if files.kind == "gguf" else files.path,
    )


def _container_note(container: str | None) -> str:
    """Return what the log says about a model whose towers are not opened. `container`: its
    multimodal architecture; None: it has none, or its towers are opened."""
    if container is None:
        return ""
    return f"; only the language model of {container}: images are not supported"


def _heads_note(spec: DecoderSpec) -> str:
    """Return what the log says about the MTP heads of a model that are not used."""
    count = spec.predicting_layers
    if count < 2:
        return ""
    return f"; of {count} MTP heads only the first is used: it also proposes the later draft tokens"


def _open_mtp(
    checkpoint: Checkpoint,
    names: TensorNames,
    spec: DecoderSpec,
    dtype: Literal["auto", "f32"],
    container: str | None,
    permuted_qk: bool,
) -> MtpWeights:
    """Open the MTP head of a model. `names`: those of the model's tensors. Raises ModelError as
    `load_model` does."""
    part = mtp_tensors(checkpoint, names, spec)
    if not isinstance(checkpoint, GgufFile):
        names = folder_names(spec, part.checkpoint, container)
    part = replace(part, checkpoint=unfuse_experts(part.checkpoint, spec))
    return MtpWeights(part, names, spec, dtype, permuted_qk)


def quantized_forms(
    names: TensorNames, spec: DecoderSpec, form: WeightForm
) -> dict[str, WeightForm]:
    """Return the type of each matrix that is quantized. Embedding, language-model head and the
    table of per-layer inputs get 8 bits, because every token depends on them."""
    ends: dict[str, WeightForm] = {f"{name}.weight": WIDE for name in (names.embedding, names.head)}
    if spec.per_layer_inputs is not None:
        ends[names.model_parts[per_layer_inputs.TABLE]] = WIDE
    return ends | dict.fromkeys(quantizable_names(names, spec), form)


def _float8_storage(float8: Float8Storage, dtype: Literal["auto", "f32"]) -> Float8Storage:
    """Return the type as which 8-bit floats are read. With dtype "f32" they are read unchanged and
    then dequantized, so that each value is rounded only once."""
    return "float8" if dtype == "f32" else float8


def load_text_parts(files: ModelFiles) -> TextParts:
    """Read tokenizer, chat template, stop ids and default sampling parameters without any weights.
    Raises ModelError as `load_model` does."""
    if files.kind == "gguf":
        return gguf_tokenizer.text_parts(GgufFile(files.path), files.model_id, fingerprint(files))
    return hf_tokenizer.text_parts(files.path, files.model_id, fingerprint(files))
