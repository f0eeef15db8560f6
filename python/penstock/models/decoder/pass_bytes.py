"""The bytes of weights that a forward pass over one token reads, from the header of the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.models.checkpoint.check_shapes import NO_TENSORS, Shape
from penstock.models.decoder.spec import LayerSpec
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights
from penstock.quant.weight_slices import size_bytes


def layer_bytes(weights: DecoderWeights, further: Mapping[str, Shape] = NO_TENSORS) -> int:
    """Return the bytes that one token reads of all tensors except the language-model head and
    others with a row per token of the vocabulary. Only the experts count that a token chooses.
    `further`: name -> shape of tensors that are read too."""
    spec = weights.spec
    chosen = replace(spec, layers=tuple(map(_with_chosen_experts, spec.layers)))
    shapes = expected_shapes(weights.names, chosen) | dict(further)
    read = {name: shape for name, shape in shapes.items() if shape[0] != spec.vocab_size}
    return weights.bytes_of(read, size_bytes)


def head_bytes(weights: DecoderWeights, rows: int) -> int:
    """Return the bytes of `rows` rows of the language-model head."""
    names, spec = weights.names, weights.spec
    name = names.embedding if spec.tied_head else names.head
    return weights.bytes_of({f"{name}.weight": (rows, spec.hidden_size)}, size_bytes)


def _with_chosen_experts(layer: LayerSpec) -> LayerSpec:
    if layer.experts is None:
        return layer
    chosen = min(layer.experts.per_token, layer.experts.count)
    return replace(layer, experts=replace(layer.experts, count=chosen))
