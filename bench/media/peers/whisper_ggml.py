"""Writes a Whisper model as a file of whisper.cpp, in the layout of its converter."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import BinaryIO, Final

import gguf
import numpy as np
from safetensors.numpy import load_file

from penstock.models.media.log_mel import mel_filters

MAGIC: Final = 0x67676D6C
FILE_TYPES: Final = {"f16": 1, "q8_0": 2007}
TENSOR_TYPES: Final = {"f16": 1, "q8_0": 8}
NAMES: Final = (
    (r"^model\.", ""),
    (r"\.layers\.", ".blocks."),
    (r"self_attn_layer_norm", "attn_ln"),
    (r"encoder_attn_layer_norm", "cross_attn_ln"),
    (r"final_layer_norm", "mlp_ln"),
    (r"self_attn", "attn"),
    (r"encoder_attn", "cross_attn"),
    (r"q_proj", "query"),
    (r"k_proj", "key"),
    (r"v_proj", "value"),
    (r"out_proj", "out"),
    (r"fc1", "mlp.0"),
    (r"fc2", "mlp.2"),
    (r"encoder\.layer_norm", "encoder.ln_post"),
    (r"decoder\.layer_norm", "decoder.ln"),
    (r"embed_positions\.weight", "positional_embedding"),
    (r"embed_tokens", "token_embedding"),
)
"""Patterns in the names of transformers, and their replacements."""


def write_ggml(folder: Path, path: Path, kind: str) -> Path:
    """Write the model of the transformers folder `folder` to `path` and return it. `kind`: f16 or
    q8_0, the type of the matrices."""
    config = json.loads((folder / "config.json").read_text())
    with path.open("wb") as file:
        sizes = (
            config["vocab_size"],
            1500,
            config["d_model"],
            config["encoder_attention_heads"],
            config["encoder_layers"],
            448,
            config["d_model"],
            config["decoder_attention_heads"],
            config["decoder_layers"],
            config["num_mel_bins"],
            FILE_TYPES[kind],
        )
        file.write(struct.pack("<12i", MAGIC, *sizes))
        filters = np.ascontiguousarray(mel_filters(config["num_mel_bins"]).T, np.float32)
        file.write(struct.pack("<2i", *filters.shape) + filters.tobytes())
        _tokens(file, folder / "tokenizer.json")
        for name, data in load_file(folder / "model.safetensors").items():
            if name != "proj_out.weight":
                _tensor(file, _renamed(name), data, kind)
    return path


def _tokens(file: BinaryIO, path: Path) -> None:
    vocabulary: dict[str, int] = json.loads(path.read_text())["model"]["vocab"]
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    letters = {chr(byte): byte for byte in kept}
    letters |= {chr(256 + index): byte for index, byte in enumerate(others)}
    text = [token for token in vocabulary if not token.startswith("<|")]
    file.write(struct.pack("<i", len(text)))
    for token in sorted(text, key=vocabulary.__getitem__):
        spelled = bytes(letters[letter] for letter in token)
        file.write(struct.pack("<i", len(spelled)) + spelled)


def _tensor(file: BinaryIO, name: str, data: np.ndarray, kind: str) -> None:
    if name in ("encoder.conv1.bias", "encoder.conv2.bias"):
        data = data.reshape(-1, 1)
    if data.ndim < 2 or "bias" in name or "positional" in name:
        own, stored = 0, data.astype("<f4")
    elif data.ndim == 3 or kind == "f16":
        own, stored = 1, data.astype("<f2")
    else:
        own = TENSOR_TYPES[kind]
        stored = gguf.quants.quantize(data.astype(np.float32), gguf.GGMLQuantizationType(own))
    encoded = name.encode()
    file.write(struct.pack("<3i", data.ndim, len(encoded), own))
    file.write(struct.pack(f"<{data.ndim}i", *reversed(data.shape)))
    file.write(encoded + stored.tobytes())


def _renamed(name: str) -> str:
    for pattern, new in NAMES:
        name = re.sub(pattern, new, name)
    return name
