"""From the files of a model to what the engine and what the API side take of it.

The two are apart: an API process loads the text parts and reads no tensor, an engine process
loads spec and weights and decodes no vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense
from penstock.models.checkpoint.check_shapes import NO_TENSORS, Shape
from penstock.models.checkpoint.gpt_oss_checkpoint import FUSED_GATE_UP, GptOssCheckpoint
from penstock.models.configuration.family import GgufDecoder
from penstock.models.configuration.gguf_encoder import gguf_pooler_spec
from penstock.models.configuration.text_backbone import non_text_bytes, text_backbone_names
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import (
    MLX_EXPERTS,
    TensorNames,
    gguf_names,
    headless_names,
    mlx_names,
)
from penstock.models.decoder.weights import DecoderWeights, Weights, quantizable_names
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
from penstock.models.tokenizer import gguf_tokenizer, hf_tokenizer
from penstock.models.tokenizer.special_tokens import read_special_tokens
from penstock.models.tokenizer.tokenizer_data import EmbeddingParts, TextParts, TokenizerFiles
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.quantize import Bits
from penstock.quant.quantizing_checkpoint import QuantizingCheckpoint
from penstock.quant.safetensors.float8_checkpoint import WIDENED, Float8Checkpoint, Float8Storage
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint, widened_bytes

COMPARED_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model whose header has been checked and whose weights are read when they are packed.
    `widened_bytes`: what the weights take beyond their files, less than none where these hold parts
    that nobody reads; `remark`: what is to be said of that
    beside the memory that they take."""

    model_id: str
    fingerprint: str
    spec: DecoderSpec
    weights: Weights
    widened_bytes: int = 0
    remark: str = ""


@dataclass(frozen=True, slots=True)
class LoadedEmbedder:
    """The same of a model that makes embeddings, or one number of each pair. `dense`: layers after
    the pooling."""

    model_id: str
    fingerprint: str
    spec: EncoderSpec | DecoderSpec
    weights: EncoderWeights | DecoderWeights
    pooler: PoolerSpec
    dense: tuple[DenseLayer, ...]
    widened_bytes: int = 0


def is_embedding_model(files: ModelFiles) -> bool:
    """Whether a model is for embeddings: an encoder, what sentence-transformers wrote, or a GGUF
    file that names a pooling."""
    if files.kind == "gguf":
        return registry.is_gguf_embedder(files.path)
    return is_sentence_transformers_folder(files.path) or registry.is_encoder_folder(files.path)


def load_embedder(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    """As `load_model`, of a model that makes embeddings."""
    if files.kind == "gguf":
        return _load_gguf_embedder(files, dtype)
    pooler = pooler_spec(files.path)
    spec = registry.embedding_spec_of_folder(files.path)
    checkpoint = open_backbone(files, dtype)
    width = spec.width
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
        widened_bytes=0 if dtype == "f32" else widened_bytes(checkpoint),
    )


def open_backbone(files: ModelFiles, dtype: Literal["auto", "f32"]) -> Checkpoint:
    """The checkpoint of a folder whose states are wanted, not its logits. Raises ModelError."""
    return open_checkpoint(files.path, _float8_storage("bf16", dtype))


def backbone_weights(
    checkpoint: Checkpoint,
    spec: EncoderSpec | DecoderSpec,
    dtype: Literal["auto", "f32"],
    also_expected: Mapping[str, Shape] = NO_TENSORS,
) -> EncoderWeights | DecoderWeights:
    """The weights of a folder's encoder, or of its decoder but for the head. `also_expected`:
    tensors
    that must be there too, and that the caller reads. Raises ModelError."""
    if isinstance(spec, EncoderSpec):
        names = registry.hf_encoder_names(spec)
        return EncoderWeights(checkpoint, names, spec, dtype, also_expected)
    decoder_names = registry.hf_names(spec)
    if "embed_tokens.weight" in checkpoint.tensors:
        decoder_names = headless_names(decoder_names)
    ordered = _unfuse_gpt_oss(checkpoint)
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
    return LoadedEmbedder(files.model_id, fingerprint(files), spec, weights, pooler, ())


def gguf_weights(
    file: GgufFile,
    spec: DecoderSpec,
    family: GgufDecoder,
    dtype: Literal["auto", "f32"],
    also_expected: Mapping[str, Shape] = NO_TENSORS,
) -> DecoderWeights:
    """Those of the decoder of a GGUF file. `also_expected`: see `backbone_weights`. Raises
    ModelError."""
    names = gguf_names(family.names, file.tensors)
    return DecoderWeights(file, names, spec, dtype, family.permuted_qk, also_expected)


def load_embedding_parts(files: ModelFiles) -> EmbeddingParts:
    """Tokenizer and prompt, without reading a weight. Raises ModelError."""
    if files.kind == "gguf":
        file = GgufFile(files.path)
        data, encodes = gguf_tokenizer.tokenizer_data(file), registry.is_gguf_encoder(file)
        if encodes and data.model != "bert":
            raise ModelError(
                f"{files.path}: tokenizer.ggml.model is {data.model!r}; of encoders this build"
                " knows bert"
            )
        return EmbeddingParts(
            files.model_id, fingerprint(files), data, "", supports_lora=not encodes
        )
    pooler = pooler_spec(files.path)
    vocab = registry.embedding_spec_of_folder(files.path).vocab
    source = tokenizer_files(files, vocab, lower_case=pooler.lower_case)
    supports_lora = not registry.is_encoder_folder(files.path)
    return EmbeddingParts(files.model_id, fingerprint(files), source, pooler.prompt, supports_lora)


def tokenizer_files(files: ModelFiles, vocab: int, *, lower_case: bool = False) -> TokenizerFiles:
    """The tokenizer of the folder of a model with an embedding of `vocab` rows. Raises
    ModelError."""
    tokenizer = files.path / "tokenizer.json"
    if not tokenizer.exists():
        raise ModelError(f"{files.path}: tokenizer.json is missing")
    declared = read_special_tokens(files.path).declared
    return TokenizerFiles(tokenizer, vocab, declared, lower_case=lower_case)


def load_model(
    files: ModelFiles,
    dtype: Literal["auto", "f32"],
    float8: Float8Storage = "bf16",
    bits: Bits | None = None,
) -> LoadedModel:
    """Open a model. `float8`: what matrices of 8-bit floats become; a CPU knows no such weights.
    `bits`: float matrices of layers are rounded to integers of so many, embedding and head to 8.

    Raises ModelError naming file and key or tensor for an unknown architecture, a missing,
    unexpected or misshapen tensor, a corrupt file.
    """
    checkpoint: Checkpoint
    read: Checkpoint
    container = None
    if files.kind == "gguf":
        checkpoint = file = GgufFile(files.path)
        spec, family = registry.spec_of_gguf(file)
        read, permuted_qk = checkpoint, family.permuted_qk
        names = gguf_names(family.names, file.tensors)
    else:
        spec = registry.spec_of_folder(files.path)
        container = registry.multimodal_architecture_of_folder(files.path)
        checkpoint = open_checkpoint(files.path, _float8_storage(float8, dtype))
        names, permuted_qk = _names(spec, checkpoint, container), False
        spec = _resolve_tied_head(spec, checkpoint, names)
        read = _unfuse_gpt_oss(checkpoint)
    rounded = None
    if bits is not None:
        read = rounded = QuantizingCheckpoint(read, quantized_bits(names, spec, bits))
    weights = DecoderWeights(read, names, spec, dtype, permuted_qk)
    if spec.bidirectional:
        raise ModelError(
            f"{files.path}: its tokens see those after them (attention.causal, is_causal or"
            " use_bidirectional_attention), so it can make embeddings and write no text"
        )
    widened = 0 if dtype == "f32" else widened_bytes(checkpoint)
    remark = WIDENED if widened and isinstance(checkpoint, Float8Checkpoint) else ""
    if container is not None:
        remark += f"; of {container} the language model alone: it reads no images"
        widened -= 0 if dtype == "f32" else non_text_bytes(checkpoint.tensors)
    if rounded is not None:
        remark += f"; float weights of layers are rounded to integers of {bits} bits"
        widened -= rounded.saved_bytes
    return LoadedModel(files.model_id, fingerprint(files), spec, weights, widened, remark)


def quantized_bits(names: TensorNames, spec: DecoderSpec, bits: Bits) -> dict[str, Bits]:
    """What each matrix that is rounded has. Embedding and head keep 8: all that a model says goes
    through them."""
    ends: dict[str, Bits] = {f"{name}.weight": 8 for name in (names.embedding, names.head)}
    return ends | dict.fromkeys(quantizable_names(names, spec), bits)


def _unfuse_gpt_oss(checkpoint: Checkpoint) -> Checkpoint:
    """A folder's weights in the order that all models have."""
    paired = any(name.endswith(FUSED_GATE_UP) for name in checkpoint.tensors)
    return GptOssCheckpoint(checkpoint) if paired else checkpoint


def _names(spec: DecoderSpec, checkpoint: Checkpoint, container: str | None) -> TensorNames:
    names = registry.hf_names(spec)
    if any(f".{MLX_EXPERTS}" in name for name in checkpoint.tensors):
        names = mlx_names(names)
    return names if container is None else text_backbone_names(names, checkpoint.tensors)


def _resolve_tied_head(
    spec: DecoderSpec, checkpoint: Checkpoint, names: TensorNames
) -> DecoderSpec:
    """The spec of a folder whose config ties the head to the embedding: not tied after all where
    the file has both and they differ."""
    both = [f"{name}.weight" for name in (names.embedding, names.head)]
    shapes = [checkpoint.tensors[name].shape for name in both if name in checkpoint.tensors]
    if not spec.tied_head or shapes != [(spec.vocab, spec.width)] * 2:
        return spec
    embedding, head = map(checkpoint.matrix, both)
    alike = isinstance(embedding, Dense) and isinstance(head, Dense) and _equal(embedding, head)
    return replace(spec, tied_head=alike)


def _equal(a: Dense, b: Dense) -> bool:
    """Whether two matrices of one shape are the same, in pieces: they may be of gigabytes."""
    firsts = range(0, len(a.data), COMPARED_ROWS)
    pieces = (slice(first, first + COMPARED_ROWS) for first in firsts)
    return a.dtype == b.dtype and all(np.array_equal(a.data[rows], b.data[rows]) for rows in pieces)


def _float8_storage(float8: Float8Storage, dtype: Literal["auto", "f32"]) -> Float8Storage:
    """As float32 each value is rounded once."""
    return "float8" if dtype == "f32" else float8


def load_text_parts(files: ModelFiles) -> TextParts:
    """Tokenizer, template, stop ids and sampling defaults, without reading a weight. Raises
    ModelError as `load_model` does."""
    if files.kind == "gguf":
        return gguf_tokenizer.text_parts(GgufFile(files.path), files.model_id, fingerprint(files))
    return hf_tokenizer.text_parts(files.path, files.model_id, fingerprint(files))
