"""Writes a GGUF model and its `mmproj` file with random weights, in the layout of llama.cpp's
converter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from bench.media.peers.shapes import Shape, Text, Tower

KINDS: Final = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_k": gguf.GGMLQuantizationType.Q4_K,
}
"""Types of the matrices."""

Tensors = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes, the rows of a matrix first."""

STD: Final = 0.02
CONTEXT: Final = 8192


def write_pair(
    folder: Path, shape: Shape, source: Path, text_kind: str, tower_kind: str, layers: int
) -> tuple[Path, Path]:
    """Write both files and return their paths.

    - `source`: a GGUF file whose byte-level tokenizer is used.
    - `text_kind`, `tower_kind`: keys of KINDS.
    - `layers`: of the language model; 0: all. Few layers leave only the cost of the tower.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = replace(shape.text, layers=layers) if layers else shape.text
    model, mmproj = folder / f"text-{text_kind}.gguf", folder / f"mmproj-{tower_kind}.gguf"
    writer = gguf.GGUFWriter(model, text.architecture)
    _text_keys(writer, text)
    _tokenizer(writer, gguf.GGUFReader(source), shape)
    _finish(writer, _text_tensors(text), text_kind)
    writer = gguf.GGUFWriter(mmproj, "clip")
    _tower_keys(writer, shape.tower, text.width)
    _finish(writer, _tower_tensors(shape.tower, text.width), tower_kind)
    return model, mmproj


def _text_keys(writer: gguf.GGUFWriter, text: Text) -> None:
    writer.add_block_count(text.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(text.width)
    writer.add_feed_forward_length(text.inner)
    writer.add_head_count(text.heads)
    writer.add_head_count_kv(text.kv_heads)
    writer.add_key_length(text.head_dim)
    writer.add_value_length(text.head_dim)
    writer.add_rope_freq_base(text.theta)
    writer.add_layer_norm_rms_eps(text.eps)
    writer.add_vocab_size(text.vocabulary)
    if not text.norms:
        writer.add_rope_dimension_count(text.head_dim)
    for key, value in text.keys.items():
        _add(writer, f"{text.architecture}.{key}", value)


def _tokenizer(writer: gguf.GGUFWriter, source: gguf.GGUFReader, shape: Shape) -> None:
    def of(name: str) -> Any:
        return source.fields[f"tokenizer.ggml.{name}"].contents()

    tokens, types = list(of("tokens")), list(of("token_type"))
    tokens += shape.tokens
    types += [gguf.TokenType.CONTROL] * len(shape.tokens)
    unused = shape.text.vocabulary - len(tokens)
    tokens += [f"<|unused_{index}|>" for index in range(unused)]
    types += [gguf.TokenType.UNUSED] * unused
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(of("pre"))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(of("merges"))
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index(shape.end))
    writer.add_pad_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(shape.template)


def _text_tensors(text: Text) -> Tensors:
    yield "token_embd.weight", (text.vocabulary, text.width)
    yield "output_norm.weight", (text.width,)
    queries, keys = text.heads * text.head_dim, text.kv_heads * text.head_dim
    for layer in range(text.layers):
        root = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            yield f"{root}{name}.weight", (text.width,)
        for name in ("attn_q_norm", "attn_k_norm") if text.norms else ():
            yield f"{root}{name}.weight", (text.head_dim,)
        yield f"{root}attn_q.weight", (queries, text.width)
        yield f"{root}attn_k.weight", (keys, text.width)
        yield f"{root}attn_v.weight", (keys, text.width)
        yield f"{root}attn_output.weight", (text.width, queries)
        yield f"{root}ffn_gate.weight", (text.inner, text.width)
        yield f"{root}ffn_up.weight", (text.inner, text.width)
        yield f"{root}ffn_down.weight", (text.width, text.inner)


def _tower_keys(writer: gguf.GGUFWriter, tower: Tower, width: int) -> None:
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(tower.projector)
    writer.add_bool("clip.use_gelu", True)
    keys: dict[str, Any] = {
        "image_size": tower.side,
        "patch_size": tower.patch,
        "embedding_length": tower.width,
        "feed_forward_length": tower.inner,
        "block_count": tower.layers,
        "attention.head_count": tower.heads,
        "attention.layer_norm_epsilon": 1e-6,
        "projection_dim": width,
        "image_mean": [tower.mean] * 3,
        "image_std": [0.5] * 3,
    }
    if tower.fused:
        keys["spatial_merge_size"] = tower.merge
        keys["is_deepstack_layers"] = [layer in tower.deep for layer in range(tower.layers)]
    else:
        keys["projector.scale_factor"] = tower.merge
        keys["preproc_image_size"] = 4 * tower.side
    for key, value in keys.items():
        _add(writer, f"clip.vision.{key}", value)


def _tower_tensors(tower: Tower, width: int) -> Tensors:
    patch, merged = (tower.width, 3, tower.patch, tower.patch), tower.width * tower.merge**2
    yield "v.patch_embd.weight", patch
    if tower.fused:
        yield "v.patch_embd.weight.1", patch
    yield "v.patch_embd.bias", (tower.width,)
    yield "v.position_embd.weight", (tower.positions, tower.width)
    for layer in range(tower.layers):
        root = f"v.blk.{layer}."
        yield from _norm(f"{root}ln1", tower.width)
        yield from _norm(f"{root}ln2", tower.width)
        if tower.fused:
            yield from _linear(f"{root}attn_qkv", 3 * tower.width, tower.width)
        else:
            for name in "qkv":
                yield from _linear(f"{root}attn_{name}", tower.width, tower.width)
        yield from _linear(f"{root}attn_out", tower.width, tower.width)
        yield from _linear(f"{root}ffn_up", tower.inner, tower.width)
        yield from _linear(f"{root}ffn_down", tower.width, tower.inner)
    yield from _norm("v.post_ln", tower.width)
    if not tower.fused:
        yield "mm.model.fc.weight", (width, merged)
        return
    yield from _linear("mm.0", merged, merged)
    yield from _linear("mm.2", width, merged)
    for layer in tower.deep:
        root = f"v.deepstack.{layer}."
        yield from _norm(f"{root}norm", merged)
        yield from _linear(f"{root}fc1", merged, merged)
        yield from _linear(f"{root}fc2", width, merged)


def _norm(name: str, width: int) -> Tensors:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _linear(name: str, rows: int, columns: int) -> Tensors:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case list():
            writer.add_array(key, value)
        case float():
            writer.add_float32(key, value)
        case _:
            writer.add_uint32(key, value)


def _finish(writer: gguf.GGUFWriter, tensors: Tensors, kind: str) -> None:
    source = np.random.default_rng(0)
    for name, shape in tensors:
        if "norm." in name or (len(shape) == 1 and name.endswith(".weight")):
            data = source.normal(1, STD, shape).astype(np.float32)
            writer.add_tensor(name, data)
        elif len(shape) == 1 or "position_embd" in name:
            writer.add_tensor(name, source.normal(0, STD, shape).astype(np.float32))
        else:
            # The patches are float16 at most, and the tied embedding has no 4 bits in any file.
            own = "f16" if len(shape) == 4 else kind
            own = "q8_0" if "token_embd" in name and kind == "q4_k" else own
            data = _matrix(source, shape, own)
            writer.add_tensor(name, data, raw_dtype=KINDS[own])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _matrix(source: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Return random weights of about STD as the file stores them; quantized ones as bytes."""
    if kind not in ("q8_0", "q4_k"):
        data = source.normal(0, STD, shape).astype(np.float32)
        return gguf.quants.quantize(data, KINDS[kind])
    rows, columns = shape
    group, size = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    blocks = source.integers(0, 256, (rows, columns // group, size), np.uint8)
    # The random bytes are uniform: integers of -128 to 127 here; products of a 6-bit scale and
    # 0 to 15, less a 6-bit minimum, there.
    scales = (STD / 74,) if kind == "q8_0" else (STD / 165, 7.5 * STD / 165)
    head = np.array(scales, np.float16).view(np.uint8)
    blocks[:, :, : len(head)] = head
    return blocks.reshape(rows, -1)
