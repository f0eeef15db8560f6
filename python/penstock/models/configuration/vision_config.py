"""Reads the `vision_config` of multimodal models, whose towers are CLIP, SigLIP, SigLIP 2, Pixtral
or the towers of Idefics 3, SmolVLM and InternVL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.towers.axial_rope import AxialRope
from penstock.models.towers.position_grids import PositionScheme
from penstock.models.towers.vision_spec import VisionActivation, VisionSpec
from penstock.models.towers.vision_weights import VisionNames

ACTIVATIONS: Final[Mapping[str, VisionActivation]] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
_GATED: Final[Mapping[str, VisionActivation]] = {"silu": "silu_mul", "gelu": "gelu_mul"}


class VisionConfig(msgspec.Struct):
    """The keys of a `vision_config`. A key that a model lacks has its default in `_KINDS`. Sides of
    images and patches are a number, or the equal height and width."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    patch_size: int | list[int]
    hidden_act: str
    layer_norm_eps: float = 1e-6
    image_size: int | list[int] = 0
    num_patches: int = 0
    num_channels: int = 3
    attention_bias: bool = True
    use_qk_norm: bool = False
    norm_type: str = "layer_norm"
    use_absolute_position_embeddings: bool = True
    use_mean_pooling: bool = True
    vision_use_head: bool = True
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HfVision:
    """A vision transformer as its config describes it.

    - `spec`: all layers, with the final norm if the model's `last_hidden_state` has one.
    - `patch`, `side`: the sides of a patch and of the images that the positions are made for, in
      pixels; `side` 0: images of any size.
    - `has_head`: the tower has a pooling head, whose tensors are not read.
    """

    spec: VisionSpec
    names: VisionNames
    patch: int
    side: int
    scheme: PositionScheme = "fixed"
    rope: AxialRope | None = None

    @property
    def patches(self) -> int:
        """The number of patches of an image of `side` by `side` pixels."""
        return (self.side // self.patch) ** 2


_QKV: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
SIGLIP_NAMES: Final = VisionNames(
    roots=("vision_model.", ""),
    patch="embeddings.patch_embedding",
    positions="embeddings.position_embedding.weight",
    layer="encoder.layers.{}.",
    attention_norm="layer_norm1",
    qkv=_QKV,
    output="self_attn.out_proj",
    mlp_norm="layer_norm2",
    up=("mlp.fc1",),
    down="mlp.fc2",
    final_norm="post_layernorm",
)
CLIP_NAMES: Final = replace(
    SIGLIP_NAMES, class_token="embeddings.class_embedding", embedding_norm="pre_layrnorm"
)
_PIXTRAL_NAMES: Final = VisionNames(
    roots=("",),
    patch="patch_conv",
    embedding_norm="ln_pre",
    layer="transformer.layers.{}.",
    attention_norm="attention_norm",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    output="attention.o_proj",
    mlp_norm="ffn_norm",
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
)
_INTERNVL_NAMES: Final = VisionNames(
    roots=("",),
    patch="embeddings.patch_embeddings.projection",
    class_token="embeddings.cls_token",
    class_token_dims=(1, 1),
    positions="embeddings.position_embeddings",
    positions_dims=(1,),
    layer="encoder.layer.{}.",
    attention_norm="layernorm_before",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    q_norm="attention.q_norm",
    k_norm="attention.k_norm",
    output="attention.projection_layer",
    attention_scale="lambda_1",
    mlp_norm="layernorm_after",
    up=("mlp.fc1",),
    down="mlp.fc2",
    mlp_scale="lambda_2",
    final_norm="layernorm",
)

_BASE: Final = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
}
_IDEFICS: Final = _BASE | {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
_LARGE: Final = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
}


def vision_of(config: Mapping[str, Any], where: str, roots: Sequence[str]) -> HfVision:
    """Return the tower of a `vision_config`. `roots`: the prefixes of the tower's tensors in the
    checkpoint. Raises ModelError that starts with `where` and names the key at fault."""
    kind = config.get("model_type", "")
    if kind not in _KINDS:
        known = ", ".join(sorted(_KINDS))
        raise ModelError(
            f"{where}: vision_config: model_type {kind!r} is not supported, known are {known}"
        )
    defaults, read = _KINDS[kind]
    try:
        given = msgspec.convert({**defaults, **config}, VisionConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: vision_config: {error}") from None
    if given.num_channels != 3:
        raise ModelError(f"{where}: num_channels must be 3, not {given.num_channels}")
    vision = read(given, where)
    vision.spec.check(where)
    own = vision.names.roots
    together = tuple(outer + inner for outer in roots for inner in own)
    return replace(vision, names=replace(vision.names, roots=together))


def select_layers(
    vision: HfVision, chosen: int | Sequence[int], where: str
) -> tuple[VisionSpec, tuple[int, ...]]:
    """Return the spec of a tower that computes the layers of `vision_feature_layer`, which indexes
    the embeddings and the results of the layers, without the final norm. Return also the layers in
    the order of the key. Raises ModelError if it names no layer."""
    count = vision.spec.layers
    given = (chosen,) if isinstance(chosen, int) else tuple(chosen)
    layers = tuple((index if index >= 0 else count + 1 + index) - 1 for index in given)
    if not layers or any(not 0 <= layer < count for layer in layers):
        raise ModelError(
            f"{where}: vision_feature_layer {chosen} must name layers of {count} in the tower"
        )
    last = max(layers)
    taps = tuple(sorted(set(layers) - {last}))
    return replace(vision.spec, layers=last + 1, final_norm=False, taps=taps), layers


def _base_spec(config: VisionConfig, where: str, patch: int) -> VisionSpec:
    if config.hidden_act not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ModelError(
            f"{where}: hidden_act {config.hidden_act!r} of the vision tower is not supported, known"
            f" are {known}"
        )
    return VisionSpec(
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        patch_shape=(3, patch, patch),
        norm_eps=config.layer_norm_eps,
        activation=ACTIVATIONS[config.hidden_act],
    )


def _clip(config: VisionConfig, where: str) -> HfVision:
    patch, side = _sides(config, where)
    spec = replace(
        _base_spec(config, where, patch),
        patch_bias=False,
        class_token=True,
        positions=(side // patch) ** 2 + 1,
        embedding_norm=True,
    )
    return HfVision(spec, CLIP_NAMES, patch, side)


def _siglip(config: VisionConfig, where: str) -> HfVision:
    patch, side = _sides(config, where)
    spec = replace(
        _base_spec(config, where, patch), positions=(side // patch) ** 2, final_norm=True
    )
    return HfVision(spec, SIGLIP_NAMES, patch, side)


def _siglip2(config: VisionConfig, where: str) -> HfVision:
    patch = _side(config.patch_size, "patch_size", where)
    spec = replace(
        _base_spec(config, where, patch),
        patch_shape=(patch * patch * 3,),
        positions=config.num_patches,
        final_norm=True,
    )
    return HfVision(spec, SIGLIP_NAMES, patch, 0, "antialiased")


def _idefics(config: VisionConfig, where: str) -> HfVision:
    return replace(_siglip(config, where), scheme="buckets")


def _pixtral(config: VisionConfig, where: str) -> HfVision:
    patch = _side(config.patch_size, "patch_size", where)
    if config.hidden_act not in _GATED:
        raise ModelError(f"{where}: hidden_act {config.hidden_act!r} must be silu or gelu")
    parameters = config.rope_parameters or {}
    theta = parameters.get("rope_theta") or config.rope_theta or 10_000.0
    spec = replace(
        _base_spec(msgspec.structs.replace(config, hidden_act="gelu"), where, patch),
        norm="rms",
        norm_eps=1e-5,
        patch_bias=False,
        embedding_norm=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        activation=_GATED[config.hidden_act],
    )
    head_dim = spec.hidden_size // max(spec.num_heads, 1)
    spec = replace(spec, rotary_dim=head_dim)
    return HfVision(spec, _PIXTRAL_NAMES, patch, 0, rope=AxialRope(float(theta), head_dim))


def _internvl(config: VisionConfig, where: str) -> HfVision:
    patch, side = _sides(config, where)
    if config.norm_type not in ("layer_norm", "rms_norm"):
        raise ModelError(f"{where}: norm_type {config.norm_type!r} is not supported")
    if config.norm_type == "rms_norm" and not config.use_mean_pooling:
        raise ModelError(f"{where}: use_mean_pooling false is not supported with rms_norm")
    spec = replace(
        _base_spec(config, where, patch),
        norm="layer" if config.norm_type == "layer_norm" else "rms",
        class_token=True,
        positions=(side // patch) ** 2 + 1 if config.use_absolute_position_embeddings else 0,
        qkv_bias=config.attention_bias,
        qk_norm=config.use_qk_norm,
        layer_scale=True,
        final_norm=not config.use_mean_pooling,
    )
    return HfVision(spec, _INTERNVL_NAMES, patch, side, "bicubic")


def _sides(config: VisionConfig, where: str) -> tuple[int, int]:
    """Return the sides of a patch and of an image."""
    patch = _side(config.patch_size, "patch_size", where)
    return patch, _side(config.image_size, "image_size", where)


def _side(given: int | list[int], name: str, where: str) -> int:
    sides = {given} if isinstance(given, int) else set(given)
    side = sides.pop() if len(sides) == 1 else 0
    if not 1 <= side <= 1 << 16:
        raise ModelError(f"{where}: {name} of the vision tower must be one side, not {given}")
    return side


_KINDS: Final[Mapping[str, tuple[Mapping[str, Any], Callable[[VisionConfig, str], HfVision]]]] = {
    "clip_vision_model": (
        _BASE | {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
        _clip,
    ),
    "siglip_vision_model": (_BASE, _siglip),
    "siglip2_vision_model": (_BASE | {"num_patches": 256}, _siglip2),
    "idefics3_vision": (_IDEFICS, _idefics),
    "idefics3": (_IDEFICS, _idefics),
    "smolvlm_vision": (_IDEFICS, _idefics),
    "pixtral": (_LARGE | {"image_size": 1024, "patch_size": 16}, _pixtral),
    "internvl_vision": (
        _LARGE | {"image_size": 448, "patch_size": 14, "attention_bias": False},
        _internvl,
    ),
}
