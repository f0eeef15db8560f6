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
from penstock.models import architectures, folder_text, gguf_text
from penstock.models.architectures import GgufFamily, is_encoder_folder
from penstock.models.declared_tokens import read_special_tokens
from penstock.models.dense import DenseLayer, read_dense
from penstock.models.encoder_gguf import (
    gguf_encoder_spec,
    gguf_sentence_spec,
    is_gguf_embedder,
    is_gguf_encoder,
)
from penstock.models.encoder_names import HF_ENCODER_NAMES, gguf_encoder_names
from penstock.models.encoder_spec import EncoderSpec
from penstock.models.encoder_weights import EncoderWeights
from penstock.models.files import ModelFiles, fingerprint
from penstock.models.language_part import names_inside, other_bytes
from penstock.models.paired_experts import PAIRED, PairedExperts
from penstock.models.sentence import SentenceSpec, is_sentence_folder, sentence_spec
from penstock.models.spec import DecoderSpec
from penstock.models.strict import NOTHING, Shape
from penstock.models.tensor_names import MLX_EXPERTS, TensorNames, gguf_names, hf_names
from penstock.models.tokenizer_data import EmbeddingParts, TextParts, TokenizerFiles
from penstock.models.weights import DecoderWeights, Weights, roundable_names
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.float8_checkpoint import WIDENED, Float8Checkpoint, Held
from penstock.quant.folder_checkpoint import open_checkpoint, widened_bytes
from penstock.quant.gguf import GgufFile
from penstock.quant.rounded_checkpoint import RoundedCheckpoint
from penstock.quant.rounding import Bits

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
    sentence: SentenceSpec
    dense: tuple[DenseLayer, ...]
    widened_bytes: int = 0


def is_embedding_model(files: ModelFiles) -> bool:
    """Whether a model is for embeddings: an encoder, what sentence-transformers wrote, or a GGUF
    file that names a pooling."""
    if files.kind == "gguf":
        return is_gguf_embedder(files.path)
    return is_sentence_folder(files.path) or is_encoder_folder(files.path)


def load_embedder(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    """As `load_model`, of a model that makes embeddings."""
    if files.kind == "gguf":
        return _load_gguf_embedder(files, dtype)
    sentence = sentence_spec(files.path)
    spec = architectures.embedding_spec_of_folder(files.path)
    checkpoint = open_body(files, dtype)
    width = spec.width
    dense = []
    for folder in sentence.dense:
        dense.append(read_dense(folder, width))
        width = dense[-1].linear.shape[0]
    return LoadedEmbedder(
        model_id=files.model_id,
        fingerprint=fingerprint(files),
        spec=spec,
        weights=body_weights(checkpoint, spec, dtype),
        sentence=sentence,
        dense=tuple(dense),
        widened_bytes=0 if dtype == "f32" else widened_bytes(checkpoint),
    )


def open_body(files: ModelFiles, dtype: Literal["auto", "f32"]) -> Checkpoint:
    """The checkpoint of a folder whose states are wanted, not its logits. Raises ModelError."""
    return open_checkpoint(files.path, _held("bf16", dtype))


def body_weights(
    checkpoint: Checkpoint,
    spec: EncoderSpec | DecoderSpec,
    dtype: Literal["auto", "f32"],
    besides: Mapping[str, Shape] = NOTHING,
) -> EncoderWeights | DecoderWeights:
    """The weights of a folder's encoder, or of its decoder but for the head. `besides`: tensors
    that must be there too, and that the caller reads. Raises ModelError."""
    if isinstance(spec, EncoderSpec):
        names = HF_ENCODER_NAMES[spec.architecture]
        return EncoderWeights(checkpoint, names, spec, dtype, besides)
    bare = "embed_tokens.weight" in checkpoint.tensors
    ordered = _ordered(checkpoint)
    return DecoderWeights(ordered, hf_names(spec, bare=bare), spec, dtype, besides=besides)


def _load_gguf_embedder(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    file = GgufFile(files.path)
    spec: EncoderSpec | DecoderSpec
    weights: EncoderWeights | DecoderWeights
    if is_gguf_encoder(file):
        spec = gguf_encoder_spec(file)
        weights = EncoderWeights(file, gguf_encoder_names(file.tensors), spec, dtype)
    else:
        spec, family = architectures.spec_of_gguf(file)
        spec = replace(spec, logit_scale=1.0)
        weights = gguf_weights(file, spec, family, dtype)
    sentence = gguf_sentence_spec(file)
    return LoadedEmbedder(files.model_id, fingerprint(files), spec, weights, sentence, ())


def gguf_weights(
    file: GgufFile,
    spec: DecoderSpec,
    family: GgufFamily,
    dtype: Literal["auto", "f32"],
    besides: Mapping[str, Shape] = NOTHING,
) -> DecoderWeights:
    """Those of the decoder of a GGUF file. `besides`: see `body_weights`. Raises ModelError."""
    names = gguf_names(family.names, file.tensors)
    return DecoderWeights(file, names, spec, dtype, family.interleaved, besides)


def load_embedding_parts(files: ModelFiles) -> EmbeddingParts:
    """Tokenizer and prompt, without reading a weight. Raises ModelError."""
    if files.kind == "gguf":
        file = GgufFile(files.path)
        data, encodes = gguf_text.tokenizer_data(file), is_gguf_encoder(file)
        if encodes and data.model != "bert":
            raise ModelError(
                f"{files.path}: tokenizer.ggml.model is {data.model!r}; of encoders this build"
                " knows bert"
            )
        return EmbeddingParts(files.model_id, fingerprint(files), data, "", adaptable=not encodes)
    sentence = sentence_spec(files.path)
    vocab = architectures.embedding_spec_of_folder(files.path).vocab
    source = tokenizer_files(files, vocab, lower_case=sentence.lower_case)
    adaptable = not is_encoder_folder(files.path)
    return EmbeddingParts(files.model_id, fingerprint(files), source, sentence.prompt, adaptable)


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
    float8: Held = "bf16",
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
        spec, family = architectures.spec_of_gguf(file)
        read, interleaved = checkpoint, family.interleaved
        names = gguf_names(family.names, file.tensors)
    else:
        spec = architectures.spec_of_folder(files.path)
        container = architectures.container_of_folder(files.path)
        checkpoint = open_checkpoint(files.path, _held(float8, dtype))
        names, interleaved = _names(spec, checkpoint, container), False
        spec = _with_its_head(spec, checkpoint, names)
        read = _ordered(checkpoint)
    rounded = None
    if bits is not None:
        read = rounded = RoundedCheckpoint(read, rounded_bits(names, spec, bits))
    weights = DecoderWeights(read, names, spec, dtype, interleaved)
    if spec.bidirectional:
        raise ModelError(
            f"{files.path}: its tokens see those after them (attention.causal, is_causal or"
            " use_bidirectional_attention), so it can make embeddings and write no text"
        )
    widened = 0 if dtype == "f32" else widened_bytes(checkpoint)
    remark = WIDENED if widened and isinstance(checkpoint, Float8Checkpoint) else ""
    if container is not None:
        remark += f"; of {container} the language model alone: it reads no images"
        widened -= 0 if dtype == "f32" else other_bytes(checkpoint.tensors)
    if rounded is not None:
        remark += f"; float weights of layers are rounded to integers of {bits} bits"
        widened -= rounded.saved_bytes
    return LoadedModel(files.model_id, fingerprint(files), spec, weights, widened, remark)


def rounded_bits(names: TensorNames, spec: DecoderSpec, bits: Bits) -> dict[str, Bits]:
    """What each matrix that is rounded has. Embedding and head keep 8: all that a model says goes
    through them."""
    ends: dict[str, Bits] = {f"{name}.weight": 8 for name in (names.embedding, names.head)}
    return ends | dict.fromkeys(roundable_names(names, spec), bits)


def _ordered(checkpoint: Checkpoint) -> Checkpoint:
    """A folder's weights in the order that all models have."""
    paired = any(name.endswith(PAIRED) for name in checkpoint.tensors)
    return PairedExperts(checkpoint) if paired else checkpoint


def _names(spec: DecoderSpec, checkpoint: Checkpoint, container: str | None) -> TensorNames:
    stacked = any(f".{MLX_EXPERTS}" in name for name in checkpoint.tensors)
    names = hf_names(spec, stacked=stacked)
    return names if container is None else names_inside(names, checkpoint.tensors)


def _with_its_head(spec: DecoderSpec, checkpoint: Checkpoint, names: TensorNames) -> DecoderSpec:
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


def _held(float8: Held, dtype: Literal["auto", "f32"]) -> Held:
    """As float32 each value is rounded once."""
    return "float8" if dtype == "f32" else float8


def load_text_parts(files: ModelFiles) -> TextParts:
    """Tokenizer, template, stop ids and sampling defaults, without reading a weight. Raises
    ModelError as `load_model` does."""
    if files.kind == "gguf":
        return gguf_text.text_parts(GgufFile(files.path), files.model_id, fingerprint(files))
    return folder_text.text_parts(files.path, files.model_id, fingerprint(files))
