"""config.json of an encoder's Hugging Face folder, family by family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.decoder.spec import MAX_LAYERS, RopeSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.families.hf_config import FULL, SLIDING, RopeParameters
from penstock.quant.json_file import read_json

MPNET_BUCKETS = 32
MPNET_PADDING = 1
MODERNBERT_THETAS = {FULL: 160_000.0, SLIDING: 10_000.0}
NOMIC_THETA = 1000.0
NOMIC_OFF = (
    "rotary_emb_interleaved",
    "rotary_emb_scale_base",
    "prenorm",
    "qkv_proj_bias",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
    "use_rms_norm",
    "causal",
    "parallel_block",
    "scale_attn_by_inverse_layer_idx",
)
"""What members of the family could have, and none does."""


class _BertConfig(msgspec.Struct):
    """BERT, RoBERTa, XLM-RoBERTa and MPNet."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str | None = "absolute"
    is_decoder: bool | None = False
    relative_attention_num_buckets: int = MPNET_BUCKETS


class _RobertaConfig(msgspec.Struct):
    pad_token_id: int | None = 1


class _ModernBertConfig(msgspec.Struct):
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_activation: str = "gelu"
    local_attention: int = 128
    layer_types: list[str] | None = None
    global_attn_every_n_layers: int = 3
    global_rope_theta: float | None = None
    local_rope_theta: float | None = None
    rope_parameters: dict[str, RopeParameters] = {}
    rope_scaling: dict[str, Any] | None = None


class _NomicConfig(msgspec.Struct):
    """As transformers writes it."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 2048
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "silu"
    rope_theta: float | None = None
    rope_scaling: RopeParameters | None = None
    rope_parameters: RopeParameters | None = None


class _NomicOwnConfig(msgspec.Struct):
    """As its authors wrote it."""

    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int
    vocab_size: int
    max_trained_positions: int = 2048
    type_vocab_size: int = 2
    layer_norm_epsilon: float = 1e-12
    activation_function: str = "swiglu"
    rotary_emb_base: float = NOMIC_THETA
    rotary_emb_fraction: float = 1.0
    rotary_emb_interleaved: bool = False
    rotary_emb_scale_base: float | None = None
    prenorm: bool = False
    qkv_proj_bias: bool = False
    mlp_fc1_bias: bool = False
    mlp_fc2_bias: bool = False
    use_rms_norm: bool | None = False
    causal: bool | None = False
    parallel_block: bool | None = False
    scale_attn_by_inverse_layer_idx: bool | None = False
    scale_attn_weights: bool | None = True
    num_experts: int | None = 0


class _Spelling(msgspec.Struct):
    n_embd: int | None = None


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """`read(path, name)`: the encoder of a config.json of the family."""

    name: str
    read: Callable[[Path, str], EncoderSpec]


def encoder_spec(path: Path, family: EncoderFamily) -> EncoderSpec:
    """The encoder of a config.json. Raises ModelError naming what is not supported."""
    spec = family.read(path, family.name)
    spec.check(str(path))
    return spec


def _bert(path: Path, name: str) -> EncoderSpec:
    """What BERT's kin share: tables of positions, blocks that normalise their results."""
    config = read_json(path, _BertConfig)
    _require(path, "hidden_act", config.hidden_act, "gelu")
    _require(path, "position_embedding_type", config.position_embedding_type, "absolute", None)
    _require(path, "is_decoder", config.is_decoder, False, None)
    return EncoderSpec(
        architecture=name,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        ff=config.intermediate_size,
        vocab=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        windows=(0,) * _layers(path, config.num_hidden_layers),
        norm_eps=config.layer_norm_eps,
        positions=config.max_position_embeddings,
        token_types=config.type_vocab_size,
    )


def _roberta(path: Path, name: str) -> EncoderSpec:
    """Positions are counted from the one after the padding's."""
    padding = read_json(path, _RobertaConfig).pad_token_id or 0
    return _counted_from(_bert(path, name), padding + 1)


def _mpnet(path: Path, name: str) -> EncoderSpec:
    """No token types, and biases by distance. Its padding has one place in all models."""
    buckets = read_json(path, _BertConfig).relative_attention_num_buckets
    _require(path, "relative_attention_num_buckets", buckets, MPNET_BUCKETS)
    spec = _counted_from(_bert(path, name), MPNET_PADDING + 1)
    return replace(spec, token_types=0, relative_buckets=buckets)


def _counted_from(spec: EncoderSpec, first: int) -> EncoderSpec:
    return replace(spec, position_offset=first, max_model_len=spec.positions - first)


def _modernbert(path: Path, name: str) -> EncoderSpec:
    config = read_json(path, _ModernBertConfig)
    _require(path, "hidden_activation", config.hidden_activation, "gelu")
    _require(path, "rope_scaling", config.rope_scaling, None)
    count = _layers(path, config.num_hidden_layers)
    period = max(config.global_attn_every_n_layers, 1)
    kinds = config.layer_types or [SLIDING if index % period else FULL for index in range(count)]
    if len(kinds) != count or not {FULL, SLIDING}.issuperset(kinds):
        raise ModelError(f"{path}: layer_types must name {count} of {FULL} and {SLIDING}")
    window = config.local_attention // 2 + 1
    head_dim = config.hidden_size // max(config.num_attention_heads, 1)
    thetas = {FULL: config.global_rope_theta, SLIDING: config.local_rope_theta}
    ropes = {}
    for kind, older in thetas.items():
        theta = older or MODERNBERT_THETAS[kind]
        ropes[kind] = _rope(path, config.rope_parameters.get(kind), theta, head_dim)
    return EncoderSpec(
        architecture=name,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        ff=config.intermediate_size,
        vocab=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        windows=tuple(window if kind == SLIDING else 0 for kind in kinds),
        norm_eps=config.norm_eps,
        rope=ropes[FULL],
        local_rope=ropes[SLIDING],
        pre_norm=True,
        activation="gelu_mul",
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        norm_bias=config.norm_bias,
    )


def _nomic(path: Path, name: str) -> EncoderSpec:
    if read_json(path, _Spelling).n_embd is not None:
        return _nomic_own(path, name)
    config = read_json(path, _NomicConfig)
    _require(path, "hidden_act", config.hidden_act, "silu")
    rope = config.rope_scaling or config.rope_parameters
    head_dim = config.hidden_size // max(config.num_attention_heads, 1)
    return EncoderSpec(
        architecture=name,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        ff=config.intermediate_size,
        vocab=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        windows=(0,) * _layers(path, config.num_hidden_layers),
        norm_eps=config.layer_norm_eps,
        token_types=config.type_vocab_size,
        rope=_rope(path, rope, config.rope_theta or NOMIC_THETA, head_dim),
        activation="silu_mul",
        attention_bias=False,
        mlp_bias=False,
    )


def _nomic_own(path: Path, name: str) -> EncoderSpec:
    config = read_json(path, _NomicOwnConfig)
    _require(path, "activation_function", config.activation_function, "swiglu")
    _require(path, "rotary_emb_fraction", config.rotary_emb_fraction, 1.0)
    _require(path, "num_experts", config.num_experts, 0, None)
    _require(path, "scale_attn_weights", config.scale_attn_weights, True, None)
    for key in NOMIC_OFF:
        _require(path, key, getattr(config, key), False, None)
    return EncoderSpec(
        architecture=name,
        width=config.n_embd,
        heads=config.n_head,
        ff=config.n_inner,
        vocab=config.vocab_size,
        max_model_len=config.max_trained_positions,
        windows=(0,) * _layers(path, config.n_layer),
        norm_eps=config.layer_norm_epsilon,
        token_types=config.type_vocab_size,
        rope=RopeSpec(config.rotary_emb_base, config.n_embd // max(config.n_head, 1)),
        activation="silu_mul",
        attention_bias=False,
        mlp_bias=False,
    )


def _rope(path: Path, given: RopeParameters | None, theta: float, head_dim: int) -> RopeSpec:
    """`theta`: where none is given."""
    if given is None:
        return RopeSpec(theta, head_dim)
    _require(path, "rope_type", given.rope_type or given.type, "default", None)
    return RopeSpec(given.rope_theta or theta, head_dim)


def _layers(path: Path, count: int) -> int:
    if not 1 <= count <= MAX_LAYERS:
        raise ModelError(f"{path}: number of layers {count} is not in 1..{MAX_LAYERS}")
    return count


def _require(path: Path, key: str, value: object, *allowed: object) -> None:
    if value not in allowed:
        raise ModelError(f"{path}: {key} {value!r} is not supported, only {allowed[0]!r}")


_FAMILIES = {
    "Bert": EncoderFamily("bert", _bert),
    "Roberta": EncoderFamily("roberta", _roberta),
    "XLMRoberta": EncoderFamily("xlm-roberta", _roberta),
    "MPNet": EncoderFamily("mpnet", _mpnet),
    "ModernBert": EncoderFamily("modernbert", _modernbert),
    "NomicBert": EncoderFamily("nomic-bert", _nomic),
}
ENCODER_ARCHITECTURES = {
    f"{name}{suffix}": family
    for name, family in _FAMILIES.items()
    for suffix in ("Model", "ForMaskedLM")
}
RERANKING_ENCODERS = {
    f"{name}ForSequenceClassification": family
    for name, family in _FAMILIES.items()
    if name != "NomicBert"
}
ENCODER_MODEL_TYPES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "mpnet": "MPNetModel",
    "modernbert": "ModernBertModel",
    "nomic_bert": "NomicBertModel",
}
"""`model_type` -> the architecture that it means in a config that names none."""
