"""The table of architectures: a name in a model's files -> how its DecoderSpec is filled.

Adding a member of the family is a line here and, where it has something new, a field of the spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from penstock.base.errors import ModelError
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import (
    GGUF_FUSED_NAMES,
    GGUF_GPT_OSS_NAMES,
    GGUF_NAMES,
    GGUF_SEED_OSS_NAMES,
    TensorNames,
)
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.families import gguf_config, hf_config
from penstock.models.families.encoder_config import (
    ENCODER_ARCHITECTURES,
    ENCODER_MODEL_TYPES,
    RERANKING_ENCODERS,
    EncoderFamily,
    encoder_spec,
)
from penstock.models.families.granite_multipliers import with_multipliers
from penstock.models.families.hf_config import HfConfig, SlidingWindowRule
from penstock.models.families.hf_defaults import DEFAULTS
from penstock.models.families.moe_config import MoeKind, hf_moe_layers
from penstock.models.families.text_backbone import multimodal_architecture, text_backbone_config
from penstock.models.families.unsupported_keys import HF_NEUTRAL, refuse_unsupported
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.quantization_config import read_scheme


@dataclass(frozen=True, slots=True)
class Family:
    """How a member differs in what its config does not say; `hf_defaults` has what it may leave
    out. A bias of None: as `attention_bias` says. `gemma`: scaled embeddings, norms stored less one
    and around each block. `multipliers`: of embeddings, attention, residuals and logits, by keys of
    its own. `partial_rotary`: of the first components of a head alone, where the config says so.
    `interleaved_rope`, `sandwich_norms`, `sinks`: as in a DecoderSpec. `experts`: how the config
    says which layers are mixtures of them."""

    name: str
    windows: SlidingWindowRule = "none"
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: bool = False
    gemma: bool = False
    multipliers: bool = False
    partial_rotary: bool = False
    interleaved_rope: bool = False
    sandwich_norms: bool = False
    sinks: bool = False
    experts: MoeKind | None = None


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """`interleaved`: the converters store the rows of q and k for a rotation of neighbours that the
    family does not have. `names`: of its tensors, but for q, k and v in one. `interleaved_rope`,
    `sandwich_norms`: as in a DecoderSpec. `gemma`: as in `Family`, but for the norms, which the
    converters complete. `multipliers`: as in `Family`."""

    name: str
    interleaved: bool = False
    names: TensorNames = GGUF_NAMES
    interleaved_rope: bool = False
    sandwich_norms: bool = False
    gemma: bool = False
    multipliers: bool = False


HF_ARCHITECTURES = {
    "LlamaForCausalLM": Family("llama"),
    "MistralForCausalLM": Family("mistral", "all", qkv_bias=False, output_bias=False),
    "Qwen2ForCausalLM": Family("qwen2", "late", qkv_bias=True, output_bias=False),
    "Qwen3ForCausalLM": Family("qwen3", "late", qk_norm=True),
    "Qwen3MoeForCausalLM": Family("qwen3_moe", "switched", qk_norm=True, experts="qwen3"),
    "MixtralForCausalLM": Family(
        "mixtral", "all", qkv_bias=False, output_bias=False, experts="mixtral"
    ),
    "SmolLM3ForCausalLM": Family("smollm3", "unrotated"),
    "Phi3ForCausalLM": Family(
        "phi3", "all", qkv_bias=False, output_bias=False, partial_rotary=True
    ),
    "GlmForCausalLM": Family("glm", output_bias=False, partial_rotary=True, interleaved_rope=True),
    "Glm4ForCausalLM": Family(
        "glm4",
        output_bias=False,
        partial_rotary=True,
        interleaved_rope=True,
        sandwich_norms=True,
    ),
    "Ernie4_5ForCausalLM": Family("ernie4_5", interleaved_rope=True),
    "SeedOssForCausalLM": Family("seed_oss"),
    "HeliumForCausalLM": Family("helium", output_bias=False, interleaved_rope=True),
    "MinistralForCausalLM": Family("ministral", "typed", qkv_bias=False, output_bias=False),
    "GraniteForCausalLM": Family("granite", multipliers=True),
    "Gemma3ForCausalLM": Family("gemma3", "pattern", qk_norm=True, gemma=True),
    "GptOssForCausalLM": Family("gpt_oss", "pattern", sinks=True, experts="gpt_oss"),
}
GGUF_ARCHITECTURES = {
    "llama": GgufFamily("llama", interleaved=True),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3"),
    "qwen3moe": GgufFamily("qwen3moe"),
    "phi3": GgufFamily("phi3", names=GGUF_FUSED_NAMES),
    "chatglm": GgufFamily("chatglm", names=GGUF_FUSED_NAMES, interleaved_rope=True),
    "glm4": GgufFamily("glm4", names=GGUF_FUSED_NAMES, interleaved_rope=True, sandwich_norms=True),
    "ernie4_5": GgufFamily("ernie4_5", interleaved_rope=True),
    "seed_oss": GgufFamily("seed_oss", names=GGUF_SEED_OSS_NAMES),
    "granite": GgufFamily("granite", interleaved=True, multipliers=True),
    "gemma3": GgufFamily("gemma3", gemma=True),
    "gpt-oss": GgufFamily("gpt-oss", names=GGUF_GPT_OSS_NAMES),
}
ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# What one family alone reads, of what may stand in any config.
OWN_KEYS = {
    "hidden_activation": "gemma3",
    "rope_local_base_freq": "gemma3",
    "use_bidirectional_attention": "gemma3",
    "attention_out_bias": "seed_oss",
    "use_bias": "ernie4_5",
    "no_rope_layers": "smollm3",
    "no_rope_layer_interval": "smollm3",
}
MULTIPLIERS = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
)


# Models saved without a head: what sentence-transformers makes of a decoder.
HEADLESS = {
    name.replace("ForCausalLM", "TextModel" if family.gemma else "Model"): family
    for name, family in HF_ARCHITECTURES.items()
}


RERANKERS: dict[str, Family | EncoderFamily] = RERANKING_ENCODERS | {
    name.replace("ForCausalLM", "ForSequenceClassification"): family
    for name, family in HF_ARCHITECTURES.items()
    if not family.gemma
}


# `model_type` -> the architecture that it means in a config that names none.
MODEL_TYPES = ENCODER_MODEL_TYPES | {
    "gemma3_text" if family.gemma else family.name: name
    for name, family in HF_ARCHITECTURES.items()
}

_F = TypeVar("_F")


class _Named(msgspec.Struct):
    """`container`: the architecture around the one that is named."""

    architectures: list[str] | None = None
    model_type: str | None = None
    container: str | None = None

    @property
    def candidates(self) -> list[str]:
        """The architectures that the config names, or else the one that its type means."""
        if self.architectures or self.model_type not in MODEL_TYPES:
            return self.architectures or []
        return [MODEL_TYPES[self.model_type]]

    @property
    def fault(self) -> str:
        """What is wrong with a config that names no known architecture: both keys, in words."""
        names = ", ".join(self.candidates)
        if self.container is not None:
            return f"{self.container} over a {names or self.model_type} is not supported"
        model_type = "" if self.model_type is None else f"model_type {self.model_type!r}"
        if names:
            return f"{names} is not supported" + (f" ({model_type})" if model_type else "")
        if model_type:
            return f"architectures names none, and {model_type} is not supported"
        return "neither architectures nor model_type names a model"


def spec_of_folder(folder: Path) -> DecoderSpec:
    """The decoder of a Hugging Face folder. Raises ModelError naming an unknown architecture."""
    path = folder / "config.json"
    return _decoder_spec(path, _family(path, HF_ARCHITECTURES))


def embedding_spec_of_folder(folder: Path) -> EncoderSpec | DecoderSpec:
    """The encoder of a Hugging Face folder, or the decoder whose states serve as one: its head is
    not asked for. Raises ModelError naming an unknown architecture."""
    path = folder / "config.json"
    family = _family(path, ENCODER_ARCHITECTURES | HF_ARCHITECTURES | HEADLESS)
    if isinstance(family, EncoderFamily):
        return encoder_spec(path, family)
    return _headless(_decoder_spec(path, family))


def reranker_spec_of_folder(folder: Path) -> EncoderSpec | DecoderSpec:
    """The body of a classifier's Hugging Face folder; token types tell a pair's texts apart, where
    it has any. Raises ModelError naming an unknown architecture."""
    path = folder / "config.json"
    family = _family(path, RERANKERS)
    if not isinstance(family, EncoderFamily):
        return _headless(_decoder_spec(path, family))
    spec = encoder_spec(path, family)
    return replace(spec, segments=2) if spec.token_types > 1 else spec


def is_reranker_folder(folder: Path) -> bool:
    """Whether the config names a classifier of texts."""
    named = _read_named(folder / "config.json")
    return any(name in RERANKERS for name in named.candidates)


def is_encoder_folder(folder: Path) -> bool:
    """Whether the config names an encoder, which can do nothing but embed."""
    named = _read_named(folder / "config.json")
    return any(name in ENCODER_ARCHITECTURES for name in named.candidates)


def multimodal_architecture_of_folder(folder: Path) -> str | None:
    """The architecture of a folder whose language model is one part of it."""
    return multimodal_architecture(read_json(folder / "config.json", dict[str, Any]))


def spec_of_gguf(file: GgufFile) -> tuple[DecoderSpec, GgufFamily]:
    """The decoder of a GGUF file, and how its tensors are stored."""
    name = file.text("general.architecture")
    family = GGUF_ARCHITECTURES.get(name)
    if family is None:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise ModelError(f"{file.path}: {name} is not supported, known are {known}")
    own = gguf_config.MULTIPLIERS if family.multipliers else frozenset()
    spec = replace(
        gguf_config.decoder_spec(file, name, own),
        interleaved_rope=family.interleaved_rope,
        sandwich_norms=family.sandwich_norms,
    )
    if family.multipliers:
        spec = gguf_config.granite_spec(file, name, spec)
    if family.gemma:
        spec = gguf_config.gemma_spec(file, name, spec)
    if name == "gpt-oss":
        spec = gguf_config.gpt_oss_spec(file, name, spec)
    spec.check(str(file.path))
    return spec, family


def _family(path: Path, known: Mapping[str, _F]) -> _F:
    """Looked up before the rest is decoded, so that a foreign config is refused by its name."""
    read_scheme(path)
    named = _read_named(path)
    for name in named.candidates:
        if name in known:
            return known[name]
    raise ModelError(f"{path}: {named.fault}, known are {', '.join(known)}")


def _read_named(path: Path) -> _Named:
    config = read_json(path, dict[str, Any])
    named = {**text_backbone_config(config), "container": multimodal_architecture(config)}
    try:
        return msgspec.convert(named, _Named)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from None


def _headless(spec: DecoderSpec) -> DecoderSpec:
    """Of a decoder whose states are wanted, not its logits."""
    return replace(spec, tied_head=True, logit_scale=1.0)


def _decoder_spec(path: Path, family: Family) -> DecoderSpec:
    given = {**DEFAULTS[family.name], **text_backbone_config(read_json(path, dict[str, Any]))}
    foreign = {key for key, name in OWN_KEYS.items() if name != family.name}
    given = {key: value for key, value in given.items() if key not in foreign}
    read = MULTIPLIERS if family.multipliers else ()
    neutral = {key: values for key, values in HF_NEUTRAL.items() if key not in read}
    refuse_unsupported(str(path), given, neutral)
    try:
        config = msgspec.convert(given, HfConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from None
    spec = _build(config, family, str(path))
    if family.multipliers:
        spec = with_multipliers(
            replace(spec, attention_scale=config.attention_multiplier),
            str(path),
            embedding=config.embedding_multiplier,
            residual=config.residual_multiplier,
            logits_divisor=config.logits_scaling,
        )
    spec.check(str(path))
    return spec


def _build(config: HfConfig, family: Family, where: str) -> DecoderSpec:
    activation = config.hidden_activation or config.hidden_act
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ModelError(f"{where}: hidden_act {activation!r} is not supported, known are {known}")
    bias = config.attention_bias or bool(config.use_bias)
    output_bias = bias if config.attention_out_bias is None else config.attention_out_bias
    rope = hf_config.rope_spec(config, where)
    local_rope = hf_config.local_rope_spec(config, where)
    for own in (rope, local_rope):
        if own is not None and not family.partial_rotary:
            hf_config.refuse_partial_rotary(config, own, where)
    layers = _layers(config, family, where)
    scalar = config.query_pre_attn_scalar
    return DecoderSpec(
        architecture=family.name,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=hf_config.head_dim(config),
        ff=config.intermediate_size,
        vocab=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        rope=rope,
        layers=layers,
        max_model_len=hf_config.max_model_len(config, rope),
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=output_bias if family.output_bias is None else family.output_bias,
        mlp_bias=config.mlp_bias or bool(config.use_bias),
        qk_norm=family.qk_norm,
        tied_head=bool(config.tie_word_embeddings),
        local_rope=local_rope,
        attention_scale=scalar**-0.5 if family.gemma and scalar and scalar > 0 else None,
        embedding_scale=max(config.hidden_size, 0) ** 0.5 if family.gemma else 1.0,
        norm_offset=1.0 if family.gemma else 0.0,
        sandwich_norms=family.gemma or family.sandwich_norms,
        interleaved_rope=family.interleaved_rope,
        activation=ACTIVATIONS[activation],
        bidirectional=hf_config.is_bidirectional(config, layers, where),
        sinks=family.sinks,
    )


def _layers(config: HfConfig, family: Family, where: str) -> tuple[LayerSpec, ...]:
    layers = hf_config.layer_specs(config, family.windows, where)
    if family.experts is None:
        return layers
    mixtures = hf_moe_layers(config, family.experts, where)
    return tuple(
        replace(layer, experts=experts) for layer, experts in zip(layers, mixtures, strict=True)
    )
