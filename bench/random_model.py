"""Write a GGUF file with random weights in the shape of a published model, to compare with peers.

    python -m bench random_model qwen3.5-0.8b --tokenizer SMOLLM2.gguf --out MODEL.gguf
    python -m bench server --model MODEL.gguf --gguf MODEL.gguf --peers VENV --with xllamacpp

The metadata are those of llama.cpp's converter. The tensors are those that Penstock expects for
them, so that llama.cpp, which checks names and shapes too, must agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import gguf
import numpy as np

from bench.layered_shapes import (
    GLM47_FLASH_4_LAYERS,
    GLM47_VOCABULARY,
    QWEN35_08B,
    QWEN35_2B,
    QWEN35_VOCABULARY,
)
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.decoder.tensor_names import TensorNames
from penstock.models.decoder.tensor_shapes import expected_shapes, matrix_shapes
from penstock.models.families.registry import spec_of_gguf
from penstock.quant.gguf.gguf_file import GgufFile

STD: Final = 0.02
CONTEXT: Final = 40_960
CHAT_TEMPLATE: Final = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
"""mistral.rs takes only chats (bench/workers/mistralrs_worker.py)."""
PIECE: Final = 1 << 24
"""Number of random values that are made at a time."""


@dataclass(frozen=True)
class ModelShape:
    """The shape of a model.

    - `architecture`: `general.architecture`.
    - `vocabulary`: the number of tokens.
    - `keys`: the metadata after the architecture's prefix.
    - `hints`: shapes of tensors whose presence tells the reader what the metadata do not.
    - `constants`: vectors with the same values in every model of the family.
    """

    architecture: str
    vocabulary: int
    keys: Mapping[str, Any]
    hints: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The model width."""
        return int(self.keys["embedding_length"])


_LFM2_ATTENTION: Final = (2, 5, 8, 10, 12, 14)
SHAPES: Final = {
    "qwen3.5-0.8b": ModelShape("qwen35", QWEN35_VOCABULARY, QWEN35_08B),
    "qwen3.5-2b": ModelShape("qwen35", QWEN35_VOCABULARY, QWEN35_2B),
    "lfm2-350m": ModelShape(
        "lfm2",
        65_536,
        {
            "embedding_length": 1024,
            "block_count": 16,
            "feed_forward_length": 4608,
            "attention.head_count": 16,
            "attention.head_count_kv": [8 if i in _LFM2_ATTENTION else 0 for i in range(16)],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 1e6,
            "shortconv.l_cache": 3,
        },
    ),
    "granite-4-350m": ModelShape(
        "granite",
        100_352,
        {
            "embedding_length": 1024,
            "block_count": 28,
            "feed_forward_length": 2048,
            "attention.head_count": 16,
            "attention.head_count_kv": 4,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.scale": 0.015625,
            "embedding_scale": 12.0,
            "residual_scale": 0.246,
            "logit_scale": 4.0,
            "rope.freq_base": 1e7,
            "rope.dimension_count": 64,
        },
    ),
    "qwen3-4b-12-layers": ModelShape(
        "qwen3",
        151_936,
        {
            "embedding_length": 2560,
            "block_count": 12,
            "feed_forward_length": 9728,
            "attention.head_count": 32,
            "attention.head_count_kv": 8,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
        },
        hints={"blk.0.attn_q_norm.weight": (128,)},
    ),
    "gpt-oss-20b-4-layers": ModelShape(
        "gpt-oss",
        201_088,
        {
            "embedding_length": 2880,
            "block_count": 4,
            "feed_forward_length": 2880,
            "attention.head_count": 64,
            "attention.head_count_kv": 8,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.sliding_window": 128,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 150_000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
            "expert_count": 32,
            "expert_used_count": 4,
            "expert_feed_forward_length": 2880,
        },
        hints={
            "output.weight": (201_088, 2880),
            "blk.0.attn_q.bias": (4096,),
            "blk.0.attn_k.bias": (512,),
            "blk.0.attn_v.bias": (512,),
            "blk.0.attn_output.bias": (2880,),
        },
    ),
    "qwen3-30b-a3b-4-layers": ModelShape(
        "qwen3moe",
        151_936,
        {
            "embedding_length": 2048,
            "block_count": 4,
            "feed_forward_length": 6144,
            "attention.head_count": 32,
            "attention.head_count_kv": 4,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": 128,
            "expert_used_count": 8,
            "expert_feed_forward_length": 768,
        },
        hints={"blk.0.attn_q_norm.weight": (128,), "output.weight": (151_936, 2048)},
    ),
    "glm-4.7-flash-4-layers": ModelShape(
        "deepseek2",
        GLM47_VOCABULARY,
        GLM47_FLASH_4_LAYERS,
        hints={
            "output.weight": (GLM47_VOCABULARY, 2048),
            "blk.0.attn_q_a.weight": (768, 2048),
            "blk.0.attn_k_b.weight": (20, 512, 192),
            "blk.1.exp_probs_b.bias": (64,),
            "blk.1.ffn_up_shexp.weight": (1536, 2048),
        },
    ),
    "gemma-4-e2b": ModelShape(
        "gemma4",
        262_144,
        {
            "embedding_length": 1536,
            "block_count": 35,
            "feed_forward_length": [6144] * 15 + [12_288] * 20,
            "attention.head_count": 8,
            "attention.head_count_kv": 1,
            "attention.key_length": 512,
            "attention.value_length": 512,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [index % 5 != 4 for index in range(35)],
            "attention.shared_kv_layers": 20,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "rope.dimension_count": 512,
            "rope.dimension_count_swa": 256,
            "embedding_length_per_layer_input": 256,
            "final_logit_softcapping": 30.0,
        },
        hints={
            "per_layer_token_embd.weight": (262_144, 35 * 256),
            "blk.0.layer_output_scale.weight": (1,),
            "blk.0.attn_q_norm.weight": (256,),
            **{f"blk.{index}.attn_v.weight": (256, 1536) for index in range(35)},
        },
        constants={"rope_freqs.weight": [1.0] * 64 + [1e30] * 192},  # a quarter is rotated
    ),
}


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="bench random_model",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--tokenizer", type=Path, required=True, help="GGUF file with a vocabulary")
    parser.add_argument("--kind", default="q8_0", choices=("f16", "bf16", "q8_0", "q4_0"))
    parser.add_argument("--mtp", action="store_true", help="add a multi-token-prediction head")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.mtp:
        shape = with_mtp_head(shape)
    write(shape, arguments.tokenizer, arguments.kind, arguments.out)


def with_mtp_head(shape: ModelShape) -> ModelShape:
    """Return `shape` with one more layer, which predicts further tokens."""
    layers = {"block_count": shape.keys["block_count"] + 1, "nextn_predict_layers": 1}
    return replace(shape, keys={**shape.keys, **layers})


def write(shape: ModelShape, tokenizer: Path, kind: str, path: Path) -> None:
    """Write the model to `path`. `kind`: the type of its matrices. `tokenizer`: a GGUF file whose
    byte-level vocabulary is used, with unused tokens up to the size of the model's."""
    source = gguf.GGUFReader(tokenizer)
    with TemporaryDirectory() as folder:
        head = Path(folder) / "head.gguf"
        writer = _writer(shape, source, head)
        hints = {"token_embd.weight": (shape.vocabulary, shape.width), **shape.hints}
        for name, size in hints.items():
            _add_hint(writer, name, size)
        _add_constants(writer, shape)
        _finish(writer)
        file = GgufFile(head)
        spec, family = spec_of_gguf(file)
    shapes = expected_shapes(family.names, spec)
    matrices = set(matrix_shapes(family.names, spec))
    if spec.mtp is not None:
        predicting = _mtp_shapes(family.names, spec, shapes)
        shapes |= predicting
        matrices |= set(predicting)
    random = np.random.default_rng(0)
    writer = _writer(shape, source, path)
    for name, size in shapes.items():
        is_matrix = name in matrices and len(size) > 1 and not name.endswith(".bias")
        own = gguf.GGMLQuantizationType[kind.upper() if is_matrix else "F32"]
        writer.add_tensor(name, _quantized(name, size, own, random), raw_dtype=own)
    _add_constants(writer, shape)
    _finish(writer)


def _mtp_shapes(
    names: TensorNames, spec: DecoderSpec, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of each tensor of the MTP head."""
    assert spec.mtp is not None and names.mtp is not None
    like, root = names.layer.format(spec.mtp.like), names.layer.format(len(spec.layers))
    width = spec.hidden_size
    layer = {
        root + name.removeprefix(like): size
        for name, size in shapes.items()
        if name.startswith(like)
    }
    return layer | {
        root + names.mtp.fc: (width, 2 * width),
        root + names.mtp.embedding_norm: (width,),
        root + names.mtp.hidden_norm: (width,),
        root + names.mtp.norm: (width,),
    }


def _add_hint(writer: gguf.GGUFWriter, name: str, size: tuple[int, ...]) -> None:
    """Add a tensor of zeros, of which the reader looks at the name and the size only."""
    kind = gguf.GGMLQuantizationType.F32 if len(size) == 1 else gguf.GGMLQuantizationType.Q4_0
    rows = gguf.quant_shape_to_byte_shape(size, kind)
    writer.add_tensor(name, np.zeros(rows, np.uint8), raw_dtype=kind)


def _add_constants(writer: gguf.GGUFWriter, shape: ModelShape) -> None:
    for name, values in shape.constants.items():
        writer.add_tensor(name, np.array(values, np.float32))


def _quantized(
    name: str,
    size: tuple[int, ...],
    kind: gguf.GGMLQuantizationType,
    random: np.random.Generator,
) -> np.ndarray:
    """Return random values in the form of `kind`. Large tensors are made in pieces, because the
    float32 values of all would need four times the memory."""
    if len(size) == 1:
        return gguf.quants.quantize(_values(name, size, random), kind)
    rows = max(1, PIECE // int(np.prod(size[1:])))
    pieces = [
        gguf.quants.quantize(_values(name, (min(rows, size[0] - start), *size[1:]), random), kind)
        for start in range(0, size[0], rows)
    ]
    return np.concatenate(pieces)


def _values(name: str, size: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return random values like those of a trained model: decays are negative, norms near 1."""
    values = random.standard_normal(size, dtype=np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(values)
    if "norm" in name:
        return 1 + STD * values
    return values if "ssm" in name and len(size) == 1 else STD * values


def _writer(shape: ModelShape, source: gguf.GGUFReader, path: Path) -> gguf.GGUFWriter:
    """Return a writer that has all metadata."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    keys = {"context_length": CONTEXT, "vocab_size": shape.vocabulary, **shape.keys}
    for key, value in keys.items():
        name = f"{shape.architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)

    def of(name: str) -> Any:
        return source.fields[f"tokenizer.ggml.{name}"].contents()

    tokens, types = list(of("tokens")), list(of("token_type"))
    unused = shape.vocabulary - len(tokens)
    tokens += [f"<|unused_{index}|>" for index in range(unused)]
    types += [gguf.TokenType.UNUSED] * unused
    writer.add_tokenizer_model(of("model"))
    writer.add_tokenizer_pre(of("pre"))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(of("merges"))
    writer.add_bos_token_id(of("bos_token_id"))
    writer.add_eos_token_id(of("eos_token_id"))
    writer.add_chat_template(CHAT_TEMPLATE)
    return writer


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
