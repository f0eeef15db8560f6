"""Loads rerankers, which score how well a document answers a query: an encoder or decoder followed
by a classifier with one label."""

from __future__ import annotations

from typing import Literal

from penstock.models.decoder.spec import DecoderSpec
from penstock.models.embedding import gguf_rerankers
from penstock.models.encoder.classifier import (
    check_labels,
    classifier_shapes,
    read_classifier,
)
from penstock.models.encoder.sentence_transformers import PoolerSpec
from penstock.models.families.registry import (
    classifier_of_folder,
    is_gguf_reranker,
    is_reranker_folder,
    reranker_spec_of_folder,
)
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.loader.model_loader import (
    LoadedEmbedder,
    backbone_weights,
    open_backbone,
    tokenizer_files,
)
from penstock.models.tokenizer.tokenizer_data import EmbeddingParts
from penstock.quant.checkpoint import extra_bytes


def is_reranker(files: ModelFiles) -> bool:
    """Return whether a model is a reranker: a folder with a classifier, or a GGUF file whose
    `pooling_type` is ranking. Raises ModelError if the files cannot be read."""
    if files.kind == "gguf":
        return is_gguf_reranker(files.path)
    return is_reranker_folder(files.path)


def load_reranker(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    """Open a reranker, which computes one logit for each pair of texts. Raises ModelError if the
    files are invalid or not supported."""
    if files.kind == "gguf":
        return gguf_rerankers.load_reranker(files, dtype)
    spec = reranker_spec_of_folder(files.path)
    classifier = classifier_of_folder(files.path)
    checkpoint = open_backbone(files, dtype)
    check_labels(checkpoint, classifier)
    return LoadedEmbedder(
        model_id=files.model_id,
        fingerprint=fingerprint(files),
        spec=spec,
        weights=backbone_weights(
            checkpoint, spec, dtype, classifier_shapes(classifier, spec.hidden_size)
        ),
        pooler=PoolerSpec(classifier.pooling),
        dense=read_classifier(checkpoint, classifier),
        extra_bytes=0 if dtype == "f32" else extra_bytes(checkpoint),
    )


def load_rerank_parts(files: ModelFiles) -> EmbeddingParts:
    """Read the tokenizer and the pair template of a reranker without its weights. Raises ModelError
    if the files are invalid or not supported."""
    if files.kind == "gguf":
        return gguf_rerankers.load_parts(files)
    spec = reranker_spec_of_folder(files.path)
    supports_lora = isinstance(spec, DecoderSpec)
    source = tokenizer_files(files, spec.vocab_size)
    return EmbeddingParts(files.model_id, fingerprint(files), source, "", supports_lora)
