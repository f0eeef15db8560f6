"""nomic-bert: BERT with rotary embedding, gated SiLU and no biases.

Its config.json exists in two versions: with the keys of transformers, and with Nomic's own keys,
which follow GPT-2.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from penstock.models.configuration.family import Family, GgufEncoder, HfEncoder
from penstock.models.configuration.gguf_decoder import require_equal
from penstock.models.configuration.gguf_encoder import gguf_encoder_spec
from penstock.models.configuration.gguf_rope import gguf_rope_scaling
from penstock.models.configuration.hf_encoder import encoder_rope, num_encoder_layers, require
from penstock.models.configuration.hf_rope import RopeParameters
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.json_file import read_json

THETA: Final = 1000.0
OFF: Final = (
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
"""Keys of Nomic's own config.json that no published model sets."""


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' NomicBertConfig."""

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


class NomicConfig(msgspec.Struct):
    """The keys of config.json in Nomic's own version."""

    n_embd: int
    n_layer: int
    n_head: int
    n_inner: int
    vocab_size: int
    max_trained_positions: int = 2048
    type_vocab_size: int = 2
    layer_norm_epsilon: float = 1e-12
    activation_function: str = "swiglu"
    rotary_emb_base: float = THETA
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


class Form(msgspec.Struct):
    """The key of config.json by which Nomic's own version is recognized."""

    n_embd: int | None = None


def spec(path: Path) -> EncoderSpec:
    """Read the encoder spec from a config.json in either version. Raises ModelError naming a key or
    value that is not supported."""
    if read_json(path, Form).n_embd is not None:
        return _nomic_spec(path)
    config = read_json(path, Config)
    require(path, "hidden_act", config.hidden_act, "silu")
    rope = config.rope_scaling or config.rope_parameters
    head_dim = config.hidden_size // max(config.num_attention_heads, 1)
    return EncoderSpec(
        architecture="",
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        windows=(0,) * num_encoder_layers(path, config.num_hidden_layers),
        norm_eps=config.layer_norm_eps,
        token_types=config.type_vocab_size,
        rope=encoder_rope(path, rope, config.rope_theta or THETA, head_dim),
        activation="silu_mul",
        attention_bias=False,
        mlp_bias=False,
    )


def _nomic_spec(path: Path) -> EncoderSpec:
    config = read_json(path, NomicConfig)
    require(path, "activation_function", config.activation_function, "swiglu")
    require(path, "rotary_emb_fraction", config.rotary_emb_fraction, 1.0)
    require(path, "num_experts", config.num_experts, 0, None)
    require(path, "scale_attn_weights", config.scale_attn_weights, True, None)
    for key in OFF:
        require(path, key, getattr(config, key), False, None)
    return EncoderSpec(
        architecture="",
        hidden_size=config.n_embd,
        num_heads=config.n_head,
        intermediate_size=config.n_inner,
        vocab_size=config.vocab_size,
        max_model_len=config.max_trained_positions,
        windows=(0,) * num_encoder_layers(path, config.n_layer),
        norm_eps=config.layer_norm_epsilon,
        token_types=config.type_vocab_size,
        rope=RopeSpec(config.rotary_emb_base, config.n_embd // max(config.n_head, 1)),
        activation="silu_mul",
        attention_bias=False,
        mlp_bias=False,
    )


def gguf_spec(file: GgufFile) -> EncoderSpec:
    """Return the encoder spec of a GGUF file."""
    width = file.integer("nomic-bert.embedding_length")
    head_dim = width // max(file.integer("nomic-bert.attention.head_count"), 1)
    theta = file.real("nomic-bert.rope.freq_base", THETA)
    require_equal(file, "nomic-bert.rope.dimension_count", head_dim)
    return gguf_encoder_spec(file, RopeSpec(theta, head_dim, gguf_rope_scaling(file, "nomic-bert")))


# The names in Nomic's own folders, which transformers still uses when it saves a model.
NAMES = EncoderNames(
    word_embeddings="embeddings.word_embeddings",
    token_type_embeddings="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    layer="encoder.layers.{}.",
    qkv=("attn.Wqkv",),
    output="attn.out_proj",
    attention_norm="norm1",
    up=("mlp.fc12", "mlp.fc11"),
    down="mlp.fc2",
    mlp_norm="norm2",
    prefixes=("", "bert.", "nomic_bert."),
    ignored=re.compile(r".*embeddings\.position_ids|.*rotary_emb\.inv_freq|(cls|lm_head)\..*"),
)
FAMILY = Family(
    hf=HfEncoder("nomic-bert", "NomicBertModel", spec, NAMES, model_type="nomic_bert"),
    gguf=GgufEncoder("nomic-bert", gguf_spec),
)
