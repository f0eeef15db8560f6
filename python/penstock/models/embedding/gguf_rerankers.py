"""Loads Qwen3-Reranker from a GGUF file as llama.cpp's converter writes it: with only the "yes" and
"no" rows of the language-model head, and a template that asks for one of the two.

The softmax of the two logits equals the sigmoid of their difference, so one row and one logit
suffice. Encoder rerankers are not read from GGUF: the converter drops BERT's pooler, which the
classifier needs.
"""

from __future__ import annotations

from typing import Final, Literal

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Linear
from penstock.models.encoder.dense import DenseLayer
from penstock.models.encoder.sentence_transformers import PoolerSpec
from penstock.models.families.registry import spec_of_gguf
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.loader.model_loader import LoadedEmbedder, gguf_weights
from penstock.models.tokenizer import gguf_tokenizer
from penstock.models.tokenizer.tokenizer_data import EmbeddingParts, PairTemplate
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.gguf_file import GgufFile

FAMILY: Final = "qwen3"
LABELS: Final = ["yes", "no"]
HEAD: Final = "cls.output.weight"
TEMPLATE: Final = "tokenizer.chat_template.rerank"


def load_reranker(files: ModelFiles, dtype: Literal["auto", "f32"]) -> LoadedEmbedder:
    """See `rerankers.load_reranker`."""
    file = GgufFile(files.path)
    spec, family = spec_of_gguf(file)
    if spec.architecture != FAMILY:
        raise ModelError(f"{file.path}: {spec.architecture} as a reranker is not supported")
    key = f"{FAMILY}.classifier.output_labels"
    labels = file.strings(key)
    if labels != LABELS:
        raise ModelError(f"{file.path}: {key} {labels} is not supported, only {LABELS}")
    also_expected = {HEAD: (len(LABELS), spec.hidden_size)}
    weights = gguf_weights(file, spec, family, dtype, also_expected)
    yes, no = dequantize(file.matrix(HEAD))
    logit = DenseLayer(Linear((Dense((yes - no)[None], "f32"),), None))
    pooler = PoolerSpec("last")
    return LoadedEmbedder(files.model_id, fingerprint(files), spec, weights, pooler, (logit,))


def load_parts(files: ModelFiles) -> EmbeddingParts:
    """See `rerankers.load_rerank_parts`."""
    file = GgufFile(files.path)
    before, found, rest = file.text(TEMPLATE).partition("{query}")
    between, found_too, after = rest.partition("{document}")
    if not found or not found_too:
        raise ModelError(f"{file.path}: {TEMPLATE} must have {{query}} before {{document}}")
    template = PairTemplate(before, between, after)
    data = gguf_tokenizer.tokenizer_data(file)
    return EmbeddingParts(files.model_id, fingerprint(files), data, "", True, template)
