"""The configuration of an assistant: a small decoder in files of its own, which proposes draft
tokens for a larger one, its target.

An assistant has queries only: its layers attend to the keys and values of the target's last layer
of the same kind (with a sliding window, or without) that has a cache. To predict token i + 1, it
reads the final hidden state of token i - 1, the target's embedding of token i, and the keys up to
token i - 1; queries are rotated by position i. For further tokens the position and the keys stay
the same, and it reads its own projected hidden state and the embedding of its last draft token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.base.errors import ModelError
from penstock.models.decoder.spec import DecoderSpec, LayerSpec


@dataclass(frozen=True, slots=True)
class CentroidSpec:
    """A language-model head that computes only the logits of the tokens in the `chosen` best of
    `count` clusters, those whose centroids have the greatest products with the hidden state."""

    count: int
    chosen: int


@dataclass(frozen=True, slots=True)
class AssistantSpec:
    """An assistant.

    - `decoder`: its layers, head and embedding, which only the head uses.
    - `target_width`: the width of the target.
    - `centroids`: None: the head computes all logits.
    """

    decoder: DecoderSpec
    target_width: int
    centroids: CentroidSpec | None = None


def paired_spec(assistant: AssistantSpec, target: DecoderSpec, where: str) -> AssistantSpec:
    """Return `assistant` with layers that read the caches of `target`. Raises ModelError that
    starts with `where` and names the size at fault if the two do not fit."""
    decoder = assistant.decoder
    if assistant.target_width != target.hidden_size:
        raise ModelError(
            f"{where}: it was made for models of width {assistant.target_width}, and the model's is"
            f" {target.hidden_size}"
        )
    if decoder.vocab_size != target.vocab_size:
        raise ModelError(
            f"{where}: its vocabulary has {decoder.vocab_size:,} tokens, and the model's"
            f" {target.vocab_size:,}"
        )
    layers = tuple(_reader(layer, decoder, target, where) for layer in decoder.layers)
    return replace(assistant, decoder=replace(decoder, layers=layers))


def _reader(layer: LayerSpec, decoder: DecoderSpec, target: DecoderSpec, where: str) -> LayerSpec:
    """Return a layer of the assistant with the target's layer whose cache it reads."""
    slides = bool(layer.window)
    alike = [
        index
        for index, own in enumerate(target.layers)
        if own.has_attention and own.attention.cache_of is None and bool(own.window) == slides
    ]
    if not alike:
        kind = "a sliding window" if slides else "full attention"
        raise ModelError(
            f"{where}: it reads the cache of a layer with {kind}, which the model lacks"
        )
    source = alike[-1]
    _, kv_heads, dim = decoder.heads(layer)
    _, cached_heads, cached_dim = target.heads(target.layers[source])
    if (kv_heads, dim) != (cached_heads, cached_dim):
        raise ModelError(
            f"{where}: it reads caches of {kv_heads} key-value heads of {dim} elements, and layer"
            f" {source} of the model has {cached_heads} of {cached_dim}"
        )
    return replace(layer, attention=replace(layer.attention, cache_of=source))
