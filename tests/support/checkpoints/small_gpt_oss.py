"""A small random gpt-oss on disk: with MXFP4 experts as published, with the same numbers as floats,
and as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS, CONTEXT = 64, 8, 2, 32, 200, 4, 160
EXPERTS, PER_TOKEN, FF, WINDOW = 6, 2, 96, 9
CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": WIDTH,
    "intermediate_size": FF,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": CONTEXT // 4,
        "truncate": False,
    },
    "attention_bias": True,
    "hidden_act": "silu",
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": PER_TOKEN,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
}
MXFP4_CONFIG = {
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
}
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

Tensors = dict[str, np.ndarray]


def gpt_oss_tensors(seed: int = 0, layers: int = LAYERS) -> Tensors:
    """Return its weights in the published form: MXFP4 experts, the rest float16. Biases of gate and
    up exceed the limits of the activation; sinks take from none to most of a head's attention."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 2.0) -> np.ndarray:
        values = random.standard_normal((rows, columns)) * scale / columns**0.5
        return values.astype(np.float16)

    def vector(*shape: int, around: float = 0.0, spread: float = 0.5) -> np.ndarray:
        return (around + spread * random.standard_normal(shape)).astype(np.float16)

    def experts(name: str, rows: int, columns: int) -> Tensors:
        shape = EXPERTS, rows, columns // 32
        return {
            f"{name}_blocks": random.integers(0, 256, (*shape, 16), np.uint8),
            f"{name}_scales": random.integers(121, 124, shape, np.uint8),
            f"{name}_bias": vector(EXPERTS, rows, spread=4.0 if rows == 2 * FF else 0.5),
        }

    tensors = {
        "model.embed_tokens.weight": matrix(VOCAB, WIDTH, WIDTH**0.5),
        "model.norm.weight": vector(WIDTH, around=1.0, spread=0.1),
        "lm_head.weight": matrix(VOCAB, WIDTH, 3.0),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": vector(WIDTH, around=1.0, spread=0.1),
            f"{at}post_attention_layernorm.weight": vector(WIDTH, around=1.0, spread=0.1),
            f"{at}self_attn.sinks": vector(HEADS, spread=3.0),
            f"{at}mlp.router.weight": matrix(EXPERTS, WIDTH),
            f"{at}mlp.router.bias": vector(EXPERTS),
        }
        sizes = {"q": (HEADS * HEAD_DIM, WIDTH), "k": (KV_HEADS * HEAD_DIM, WIDTH)}
        sizes |= {"v": sizes["k"], "o": (WIDTH, HEADS * HEAD_DIM)}
        for part, (rows, columns) in sizes.items():
            tensors[f"{at}self_attn.{part}_proj.weight"] = matrix(rows, columns)
            tensors[f"{at}self_attn.{part}_proj.bias"] = vector(rows)
        tensors |= experts(f"{at}mlp.experts.gate_up_proj", 2 * FF, WIDTH)
        tensors |= experts(f"{at}mlp.experts.down_proj", WIDTH, FF)
    return tensors


def codes_of(blocks: np.ndarray) -> np.ndarray:
    """Unpack [..., G, 16] bytes of two codes, the low one first, to [..., G, 32]."""
    return np.stack((blocks & 15, blocks >> 4), axis=-1).reshape(*blocks.shape[:-1], 32)


def decoded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Decode codes [..., G, 16] and exponents [..., G] to [..., 32 G] float32, by the definition of
    MXFP4."""
    codes = codes_of(blocks)
    values = VALUES[codes & 7] * np.where(codes & 8, -1, 1).astype(np.float32)
    factor = np.exp2(scales.astype(np.float32) - 127)
    return (values * factor[..., None]).reshape(*scales.shape[:-1], -1)


def as_floats(tensors: Mapping[str, np.ndarray]) -> Tensors:
    """Return the same numbers with experts as float32 matrices, stored transposed."""
    floats: Tensors = {}
    for name, values in tensors.items():
        if name.endswith("_blocks"):
            plain = name.removesuffix("_blocks")
            whole = decoded(values, tensors[f"{plain}_scales"])
            floats[plain] = np.ascontiguousarray(whole.swapaxes(1, 2))
        elif not name.endswith("_scales"):
            floats[name] = values
    return floats


def write_small_gpt_oss(
    folder: Path,
    form: Literal["mxfp4", "floats"] = "mxfp4",
    tensors: Tensors | None = None,
    **config: object,
) -> Path:
    """Write a Hugging Face folder. `config`: keys with other values."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors or gpt_oss_tensors()
    written = CONFIG | (MXFP4_CONFIG if form == "mxfp4" else {})
    save_file(tensors if form == "mxfp4" else as_floats(tensors), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(written | config))
    return folder


GGUF_NAMES = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    "model.layers.": "blk.",
    "input_layernorm.": "attn_norm.",
    "post_attention_layernorm.": "post_attention_norm.",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.": "attn_",
    "mlp.router.": "ffn_gate_inp.",
    "_proj.": ".",
}


def write_small_gpt_oss_gguf(
    path: Path, tensors: Tensors | None = None, keys: Mapping[str, int | float] | None = None
) -> Path:
    """Write the same as a GGUF file in the layout of llama.cpp's converter: F16 attention matrices,
    MXFP4 experts, the rest F32. `keys`: further metadata."""
    tensors = tensors or gpt_oss_tensors()
    writer = gguf.GGUFWriter(str(path), "gpt-oss")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(CONFIG["rope_scaling"]["factor"])
    writer.add_rope_scaling_orig_ctx_len(CONTEXT // 4)
    writer.add_sliding_window(WINDOW)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(PER_TOKEN)
    writer.add_expert_feed_forward_length(FF)
    for key, value in (keys or {}).items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        writer.kv_data[0].pop(key, None)
        add(key, value)
    for name, values in tensors.items():
        if ".experts." in name:
            if not name.endswith("_scales"):
                _add_experts(writer, name, tensors)
            continue
        for old, new in GGUF_NAMES.items():
            name = name.replace(old, new)
        plain = values.ndim < 2 or "ffn_gate_inp" in name
        writer.add_tensor(name, values.astype(np.float32 if plain else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_experts(writer: gguf.GGUFWriter, name: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Add the parts of a tensor of experts, in which rows of gate and up alternate."""
    layer = name.split(".")[2]
    stored, _, kind = name.rpartition("_")
    rows = {"ffn_gate_exps": slice(0, None, 2), "ffn_up_exps": slice(1, None, 2)}
    for part, own in (rows if "gate_up" in name else {"ffn_down_exps": slice(None)}).items():
        full = f"blk.{layer}.{part}"
        if kind == "bias":
            writer.add_tensor(f"{full}.bias", tensors[name][:, own].astype(np.float32))
            continue
        blocks, scales = (tensors[f"{stored}_{what}"][:, own] for what in ("blocks", "scales"))
        codes = codes_of(blocks)
        halves = codes[..., :16] | codes[..., 16:] << 4
        raw = np.concatenate((scales[..., None], halves), axis=-1)
        packed = raw.reshape(*raw.shape[:2], -1)
        writer.add_tensor(f"{full}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
