"""Reads the assistants of Gemma 4: their text config, or the metadata of a GGUF file, in which
every layer is a predicting layer."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import HfDecoder
from penstock.models.configuration.gemma4_text import gguf_text_spec
from penstock.models.configuration.gemma_text import GGUF_INPUT_NAMES, INPUT_NAMES
from penstock.models.decoder.assistant_spec import AssistantSpec, CentroidSpec
from penstock.models.decoder.assistant_weights import AssistantNames
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile

GGUF_ARCHITECTURE: Final = "gemma4-assistant"
NAMES: Final = AssistantNames(
    INPUT_NAMES,
    before="pre_projection.weight",
    after="post_projection.weight",
    centroids="masked_embedding.centroids.weight",
    ordering="masked_embedding.token_ordering",
)
# llama.cpp computes all logits and ignores the tensors of centroids.
GGUF_NAMES: Final = AssistantNames(
    replace(GGUF_INPUT_NAMES, ignored=re.compile(r"masked_embd_(centroids|ordering)(\.weight)?")),
    before="nextn.pre_projection.weight",
    after="nextn.post_projection.weight",
)


class AssistantConfig(msgspec.Struct):
    """The keys of config.json beside `text_config`, with the defaults of transformers'
    Gemma4AssistantConfig."""

    backbone_hidden_size: int = 1536
    use_ordered_embeddings: bool = False
    num_centroids: int = 2048
    centroid_intermediate_top_k: int = 32
    tie_word_embeddings: bool = True
    text_config: dict[str, Any] = {}


class UnifiedAssistantConfig(AssistantConfig):
    """The keys of config.json, with the defaults of transformers' Gemma4UnifiedAssistantConfig."""

    backbone_hidden_size: int = 3840


def read_assistant(
    keys: Mapping[str, Any], text: HfDecoder[Any], config_class: type[AssistantConfig], where: str
) -> AssistantSpec:
    """Return the assistant that the keys of a config.json describe. `text`: the family of its
    decoder. Raises ModelError that starts with `where` and names the key at fault."""
    try:
        config = msgspec.convert(keys, config_class)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: {error}") from None
    inner = {**config.text_config, "tie_word_embeddings": config.tie_word_embeddings}
    if inner.get("use_double_wide_mlp"):
        raise ModelError(f"{where}: use_double_wide_mlp true is not supported in an assistant")
    # All layers read the caches of another model, not those of earlier layers.
    decoder = text.read({**inner, "num_kv_shared_layers": 0}, f"{where}: text_config")
    centroids = None
    if config.use_ordered_embeddings:
        centroids = CentroidSpec(config.num_centroids, config.centroid_intermediate_top_k)
        if not 1 <= centroids.chosen <= centroids.count or decoder.vocab_size % centroids.count:
            raise ModelError(
                f"{where}: num_centroids {centroids.count} with centroid_intermediate_top_k"
                f" {centroids.chosen} is not supported for {decoder.vocab_size} tokens"
            )
    return AssistantSpec(_assistant_layers(decoder, where), config.backbone_hidden_size, centroids)


def read_gguf_assistant(file: GgufFile) -> AssistantSpec:
    """Return the assistant in a GGUF file. Raises ModelError naming the key at fault."""
    width = file.integer(f"{GGUF_ARCHITECTURE}.embedding_length_out")
    plain = copy.copy(file)
    plain.metadata = {
        key.replace(f"{GGUF_ARCHITECTURE}.", "gemma4."): value
        for key, value in file.metadata.items()
        if not key.endswith((".nextn_predict_layers", ".shared_kv_layers"))
    } | {"general.architecture": "gemma4"}
    decoder = gguf_text_spec(plain)
    decoder.check(str(file.path))
    return AssistantSpec(_assistant_layers(decoder, str(file.path)), width)


def _assistant_layers(decoder: DecoderSpec, where: str) -> DecoderSpec:
    """Return the decoder of an assistant. Its layers with a window see one more key than those of
    the target, as in transformers, whose mask includes the key at the distance of the window. Its
    logits are not capped."""
    if decoder.per_layer_inputs is not None or any(layer.experts for layer in decoder.layers):
        raise ModelError(
            f"{where}: per-layer inputs (hidden_size_per_layer_input) and experts"
            " (enable_moe_block) are not supported in an assistant"
        )
    layers = tuple(
        replace(layer, window=layer.window + 1) if layer.window else layer
        for layer in decoder.layers
    )
    return replace(decoder, layers=layers, logit_cap=0.0)
