"""Reads the mixtures of experts of a GGUF file: routers, shared experts and dense layers. The names
of the file's tensors tell whether routers have biases and whether shared experts have a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.base.errors import ModelError
from penstock.kernels.routing import Routing, Scoring
from penstock.models.decoder.experts_spec import ExpertsSpec, check_choice
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.gguf.gguf_file import GgufFile

EXPERT_KEYS: Final = frozenset(
    {
        "expert_gating_func",
        "expert_shared_count",
        "expert_group_count",
        "expert_weights_scale",
        "leading_dense_block_count",
        "interleave_moe_layer_step",
        "nextn_predict_layers",
    }
)
"""The keys that `gguf_mixtures` and `gguf_decoder_spec` read for it, without the "<architecture>."
prefix."""

_SCORINGS: Final[dict[int, Scoring]] = {1: "softmax", 2: "sigmoid"}


def gguf_mixtures(
    file: GgufFile,
    plain: DecoderSpec,
    scoring: Scoring,
    *,
    renormalize: bool = True,
    best_of_group: int = 2,
    sparse: Sequence[bool] | None = None,
) -> DecoderSpec:
    """Return `plain`, whose layers are all mixtures, with the dense layers and with the router and
    the shared experts that the file describes.

    - `scoring`, `renormalize`: if the file has no key for them.
    - `best_of_group`: see `Routing`.
    - `sparse`: for each layer whether it is a mixture; None: the file has keys for it.

    Raises ModelError naming the key or tensor at fault.
    """
    experts = plain.layers[0].experts
    if experts is None:
        raise ModelError(f"{file.path}: {plain.architecture}.expert_count is missing")
    sparse = _sparse_layers(file, plain) if sparse is None else list(sparse)
    if not any(sparse):
        return replace(plain, layers=tuple(replace(own, experts=None) for own in plain.layers))
    prefix = f"blk.{sparse.index(True)}."
    routing = _routing(file, plain.architecture, experts, scoring, renormalize)
    mixture = replace(
        experts,
        routing=replace(routing, best_of_group=best_of_group),
        correction_bias=f"{prefix}exp_probs_b.bias" in file.tensors,
        shared_size=_shared_size(file, plain.architecture, prefix),
        shared_gated=f"{prefix}ffn_gate_inp_shexp.weight" in file.tensors,
    )
    layers = zip(plain.layers, sparse, strict=True)
    return replace(
        plain,
        layers=tuple(replace(layer, experts=mixture if own else None) for layer, own in layers),
    )


def _sparse_layers(file: GgufFile, plain: DecoderSpec) -> list[bool]:
    """Return for each layer whether it is a mixture."""
    first = file.integer(f"{plain.architecture}.leading_dense_block_count", 0)
    step_key = f"{plain.architecture}.interleave_moe_layer_step"
    step = file.integer(step_key, 1) or 1
    if step < 0:
        raise ModelError(f"{file.path}: {step_key} {step} is negative")
    return [index >= first and (index + 1) % step == 0 for index in range(len(plain.layers))]


def _routing(
    file: GgufFile, architecture: str, experts: ExpertsSpec, scoring: Scoring, renormalize: bool
) -> Routing:
    key = f"{architecture}.expert_gating_func"
    gating = file.integer(key, 0)
    if gating and gating not in _SCORINGS:
        raise ModelError(f"{file.path}: {key} {gating} is not supported")
    given = file.boolean(f"{architecture}.expert_weights_norm")
    groups = file.integer(f"{architecture}.expert_group_count", 1) or 1
    chosen = file.integer(f"{architecture}.expert_group_used_count", groups) or groups
    check_choice(str(file.path), experts.per_token, groups, chosen)
    return Routing(
        experts.per_token,
        _SCORINGS.get(gating, scoring),
        renormalize=renormalize if given is None else given,
        scale=file.real(f"{architecture}.expert_weights_scale", 0.0) or 1.0,
        groups=groups,
        groups_per_token=chosen,
    )


def _shared_size(file: GgufFile, architecture: str, prefix: str) -> int:
    """Return the width of the shared experts of the layer with `prefix`, 0 if there are none."""
    name, key = f"{prefix}ffn_up_shexp.weight", f"{architecture}.expert_shared_count"
    info = file.tensors.get(name)
    if info is not None:
        return info.shape[0]
    if file.integer(key, 0):
        raise ModelError(f"{file.path}: tensor {name} is missing")
    return 0
