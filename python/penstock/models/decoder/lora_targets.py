"""The linear layers of a decoder that LoRA adapters may change, and the modules whose adapters do.

Mixers name theirs (`MixerSpec.lora`); those of attention, the feed-forward and shared experts are
named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.head_rows import deinterleaved_rows, gated_rows
from penstock.models.decoder.lora_block import (
    LoraBlock,
    LoraLinear,
    LoraTarget,
    PlacedRows,
    inside,
    joined,
    stacked,
    whole,
)
from penstock.models.decoder.spec import DecoderSpec, LayerSpec

# last component of a module's name -> its parts, in the order of its rows
_ATTENTION: Final[Mapping[str, tuple[str, ...]]] = {
    "q_proj": ("q",),
    "k_proj": ("k",),
    "v_proj": ("v",),
    "o_proj": ("o",),
    "dense": ("o",),  # Phi
    "out_proj": ("o",),  # LFM2
    "qkv_proj": ("q", "k", "v"),
}
_FEED_FORWARD: Final[Mapping[str, tuple[str, ...]]] = {
    "gate_proj": ("gate",),
    "up_proj": ("up",),
    "down_proj": ("down",),
    "gate_up_proj": ("gate", "up"),
    "fc1": ("up",),  # Phi
    "fc2": ("down",),
    "c_fc": ("up",),  # Starcoder2
    "c_proj": ("down",),
    "w1": ("gate",),  # LFM2
    "w3": ("up",),
    "w2": ("down",),
    "input_linear": ("gate", "up"),  # Granite
    "output_linear": ("down",),
}
# the other components of the name: those of most families; of Nemotron-H; of LFM2, Falcon-H1 and
# Llama 4; of Granite; of Hunyuan
_ATTENTION_BLOCKS: Final = ("self_attn", "mixer")
_DENSE_BLOCKS: Final = ("mlp", "mixer", "feed_forward", "shared_mlp")
_SHARED_BLOCKS: Final = (
    "mlp.shared_experts",
    "mlp.shared_expert",
    "mixer.shared_experts",
    "feed_forward.shared_expert",
    "shared_mlp",
    "mlp.shared_mlp",
)
_SHARED_ROUTER: Final = "mlp.shared_expert_gate"
_SHARED: Final = {
    leaf: tuple(f"shared_{p}" for p in parts) for leaf, parts in _FEED_FORWARD.items()
}


def lora_blocks(spec: DecoderSpec) -> tuple[LoraBlock, ...]:
    """Return the part of each layer that adapters may change. Routed experts are no targets."""
    kinds = {layer: _layer_block(spec, layer) for layer in set(spec.layers)}
    return tuple(kinds[layer] for layer in spec.layers)


def _layer_block(spec: DecoderSpec, layer: LayerSpec) -> LoraBlock:
    blocks = []
    if layer.has_attention:
        blocks.append(_attention(spec, layer))
    elif layer.mixer is not None and layer.has_mixer:
        blocks.append(layer.mixer.lora(spec))
    if layer.is_dense:
        blocks.append(_dense(spec, layer))
    if layer.experts is not None and layer.experts.shared_size and layer.has_feed_forward:
        blocks.append(_shared(spec, layer.experts))
    return joined(blocks)


def linear_numbers(spec: DecoderSpec) -> tuple[Mapping[str, int], ...]:
    """Return for each decoder layer the name of each linear layer -> its number in the whole
    decoder."""
    numbers, first = [], 0
    for block in lora_blocks(spec):
        numbers.append({name: first + index for index, name in enumerate(block.linears)})
        first += len(block.linears)
    return tuple(numbers)


def linear_sizes(spec: DecoderSpec) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (number of inputs, numbers of rows of the parts) of each linear layer of a decoder, in
    the order of their numbers."""
    return tuple(
        (linear.inputs, tuple(linear.parts.values()))
        for block in lora_blocks(spec)
        for linear in block.linears.values()
    )


def adapter_bytes(spec: DecoderSpec, rank: int, item_bytes: int) -> int:
    """Return the bytes of an adapter of rank `rank` on all linear layers, with `item_bytes` per
    element."""
    return sum(
        item_bytes * rank * (inputs + outputs)
        for inputs, rows in linear_sizes(spec)
        for outputs in rows
    )


def count_parts(module: str) -> int:
    """Return the number of parts into which the rows of a module of attention or of a feed-forward
    are divided; 1 for other modules."""
    leaf = module.rpartition(".")[2]
    return len(_ATTENTION.get(leaf) or _FEED_FORWARD.get(leaf) or ("one",))


def why_no_target(
    spec: DecoderSpec, blocks: Sequence[LoraBlock], index: int, module: str
) -> str | None:
    """Return why adapters of a module of layer `index` are not supported; None if no layer has such
    a module. `blocks`: those of `lora_blocks`."""
    layer = spec.layers[index]
    block, _, leaf = module.rpartition(".")
    in_feed_forward = block in _DENSE_BLOCKS and leaf in _FEED_FORWARD
    refused = blocks[index].refused.get(module)
    if refused is not None:
        return refused
    if in_feed_forward and layer.experts is not None and not layer.is_dense:
        return f"layer {index} is a mixture of experts; adapters for experts are not supported"
    if in_feed_forward and "gate" in _FEED_FORWARD[leaf] and layer.is_dense and not spec.gated:
        return "the feed-forward of the model has no gate"
    known = in_feed_forward or (block in _ATTENTION_BLOCKS and leaf in _ATTENTION)
    if known or any(module in one.targets for one in blocks):
        return f"layer {index} has no such linear layer"
    return None


def _attention(spec: DecoderSpec, layer: LayerSpec) -> LoraBlock:
    """Return the projections that a layer with attention has. The query projection of a model with
    an output gate has the rows of both."""
    heads, kv_heads, dim = spec.heads(layer)
    rows = {part: count for part, count in zip("qkv", spec.qkv_rows(layer), strict=True) if count}
    width, inner = spec.hidden_size, heads * dim
    qkv, output = LoraLinear(width, rows), LoraLinear(inner, {"o": width})
    targets = _targets(_ATTENTION_BLOCKS, _ATTENTION, {**rows, "o": width})
    if spec.output_gate:
        opened = LoraLinear(width, {"output_gate": inner})
        q, gate = gated_rows(heads, dim)
        both = (PlacedRows("q", q), PlacedRows("output_gate", gate))
        linears = {"qkv": qkv, "output_gate": opened, "output": output}
        return LoraBlock(linears, targets | {"self_attn.q_proj": both})
    if spec.interleaved_rope:
        rotated = spec.layer_rope(layer).rotary_dim
        orders = {
            part: deinterleaved_rows(count, dim, rotated)
            for part, count in (("q", heads), ("k", kv_heads))
        }
        targets = {name: _reordered(target, orders) for name, target in targets.items()}
    return LoraBlock({"qkv": qkv, "output": output}, targets)


def _reordered(target: LoraTarget, orders: Mapping[str, np.ndarray]) -> LoraTarget:
    """Return a target whose parts in `orders` take their rows in these orders."""
    turned = []
    for one in target:
        order = orders.get(one.part)
        if order is not None:
            start = one.rows.start if isinstance(one.rows, slice) else 0
            one = PlacedRows(one.part, (start or 0) + order)
        turned.append(one)
    return tuple(turned)


def _dense(spec: DecoderSpec, layer: LayerSpec) -> LoraBlock:
    width, size = spec.hidden_size, spec.feed_forward_size(layer)
    opening = {"gate": size, "up": size} if spec.gated else {"up": size}
    linears = {
        "gate_up": LoraLinear(width, opening),
        "down": LoraLinear(size, {"down": width}),
    }
    factors = {"gate": spec.gate_factor, "down": spec.down_factor}
    parts = {**opening, "down": width}
    return LoraBlock(linears, _targets(_DENSE_BLOCKS, _FEED_FORWARD, parts, factors))


def _shared(spec: DecoderSpec, experts: ExpertsSpec) -> LoraBlock:
    width, size = spec.hidden_size, experts.shared_size
    opening = {"shared_gate": size, "shared_up": size} if experts.gated else {"shared_up": size}
    linears = {
        "shared_gate_up": LoraLinear(width, opening),
        "shared_down": LoraLinear(size, {"shared_down": width}),
    }
    targets = _targets(_SHARED_BLOCKS, _SHARED, {**opening, "shared_down": width})
    if experts.shared_gated:
        linears["shared_router"] = LoraLinear(width, {"shared_router": 1})
        targets |= {_SHARED_ROUTER: whole("shared_router")}
    return LoraBlock(linears, targets)


def _targets(
    blocks: tuple[str, ...],
    leaves: Mapping[str, tuple[str, ...]],
    rows: Mapping[str, int],
    factors: Mapping[str, float] | None = None,
) -> dict[str, LoraTarget]:
    """Return the modules of `leaves` in all `blocks` whose parts are all in `rows`, a part -> the
    number of its rows. `factors`: see `PlacedRows`."""
    targets = {
        leaf: stacked({part: rows[part] for part in parts}, factors)
        for leaf, parts in leaves.items()
        if rows.keys() >= set(parts)
    }
    return inside(targets, *blocks)
