"""Write a GGUF file with random weights in the shape of a hybrid model, to compare with llama.cpp.

    python -m bench hybrids qwen3.5-0.8b --tokenizer SMOLLM2.gguf --out MODEL.gguf
    python -m bench server --model MODEL.gguf --gguf MODEL.gguf --peers VENV --with xllamacpp

The metadata are those of llama.cpp's converter. The tensors are those that Penstock expects for
them, so that llama.cpp, which checks names and shapes too, must agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import gguf
import numpy as np

from penstock.models.decoder.tensor_shapes import expected_shapes, matrix_shapes
from penstock.models.families.registry import spec_of_gguf
from penstock.quant.gguf.gguf_file import GgufFile

STD: Final = 0.02
CONTEXT: Final = 16_384


@dataclass(frozen=True)
class HybridShape:
    """The shape of a model: `general.architecture`, the number of tokens, and the metadata after
    the architecture's prefix."""

    architecture: str
    vocabulary: int
    keys: Mapping[str, Any]

    @property
    def width(self) -> int:
        """The model width."""
        return int(self.keys["embedding_length"])


def _delta(width: int, layers: int, ff: int, heads: int, kv_heads: int) -> dict[str, Any]:
    """Return the metadata of a Qwen3.5 with attention in every fourth layer."""
    return {
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": ff,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": 256,
        "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": 64,
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.time_step_rank": 16,
        "ssm.inner_size": 2048,
        "full_attention_interval": 4,
    }


_LFM2_ATTENTION: Final = (2, 5, 8, 10, 12, 14)
SHAPES: Final = {
    "qwen3.5-0.8b": HybridShape("qwen35", 248_320, _delta(1024, 24, 3584, 8, 2)),
    "qwen3.5-2b": HybridShape("qwen35", 248_320, _delta(2048, 24, 6144, 8, 2)),
    "lfm2-350m": HybridShape(
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
}


def main() -> None:
    """Write the file that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="bench hybrids", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--tokenizer", type=Path, required=True, help="GGUF file with a vocabulary")
    parser.add_argument("--kind", default="q8_0", choices=("f16", "bf16", "q8_0", "q4_0"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write(SHAPES[arguments.shape], arguments.tokenizer, arguments.kind, arguments.out)


def write(shape: HybridShape, tokenizer: Path, kind: str, path: Path) -> None:
    """Write the model to `path`. `kind`: the type of its matrices. `tokenizer`: a GGUF file whose
    byte-level vocabulary is used, with unused tokens up to the size of the model's."""
    source = gguf.GGUFReader(tokenizer)
    with TemporaryDirectory() as folder:
        head = Path(folder) / "head.gguf"
        writer = _writer(shape, source, head)
        kind_of_rows = gguf.GGMLQuantizationType.Q4_0  # the reader looks at the size only
        rows = gguf.quant_shape_to_byte_shape((shape.vocabulary, shape.width), kind_of_rows)
        writer.add_tensor("token_embd.weight", np.zeros(rows, np.uint8), raw_dtype=kind_of_rows)
        _finish(writer)
        file = GgufFile(head)
        spec, family = spec_of_gguf(file)
    shapes = expected_shapes(family.names, spec)
    matrices = matrix_shapes(family.names, spec)
    random = np.random.default_rng(0)
    writer = _writer(shape, source, path)
    for name, size in shapes.items():
        is_matrix = name in matrices and len(size) > 1
        own = gguf.GGMLQuantizationType[kind.upper() if is_matrix else "F32"]
        writer.add_tensor(
            name, gguf.quants.quantize(_values(name, size, random), own), raw_dtype=own
        )
    _finish(writer)


def _values(name: str, size: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return random values like those of a trained model: decays are negative, norms near 1."""
    values = random.standard_normal(size, dtype=np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(values)
    if "norm" in name:
        return 1 + STD * values
    return values if "ssm" in name and len(size) == 1 else STD * values


def _writer(shape: HybridShape, source: gguf.GGUFReader, path: Path) -> gguf.GGUFWriter:
    """Return a writer that has all metadata."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    keys = {"context_length": CONTEXT, "vocab_size": shape.vocabulary, **shape.keys}
    for key, value in keys.items():
        name = f"{shape.architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
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
    return writer


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
