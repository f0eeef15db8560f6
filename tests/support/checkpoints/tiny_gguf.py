"""A GGUF file with the text parts of a model: the tokens of `tiny_tokenizer`, and an embedding of
zeros. Engines cannot load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.checkpoints.tiny_tokenizer import CHATML, tiny_data

WIDTH = 64


def write_tiny_gguf(
    path: Path, keys: Mapping[str, Any] | None = None, *, template: str = CHATML, **changes: Any
) -> Path:
    """Write the file. `keys`: further metadata, float, int or str. `changes`: as for `tiny_data`;
    None leaves a field out."""
    data = tiny_data(**changes)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(data.model)
    if data.pre is not None:
        writer.add_tokenizer_pre(data.pre)
    writer.add_token_list(data.tokens)
    if data.token_types:
        writer.add_token_types(data.token_types)
    writer.add_token_merges(data.merges)
    writer.add_chat_template(template)
    for name, token in (("bos", data.bos_id), ("eos", data.eos_id)):
        if token is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    for key, value in (keys or {}).items():
        add = {float: writer.add_float32, int: writer.add_uint32, str: writer.add_string}
        add[type(value)](key, value)
    writer.add_tensor("token_embd.weight", np.zeros((len(data.tokens), WIDTH), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
