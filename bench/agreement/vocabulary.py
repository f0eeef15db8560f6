"""Adds a small vocabulary to a GGUF file, because llama.cpp loads no model without one."""

from __future__ import annotations

from pathlib import Path

import gguf


def add_vocabulary(source: Path, path: Path) -> None:
    """Write the model of `source` to `path` with a vocabulary. Each token has a text of its own.
    The last tokens begin and end a sequence."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *inner = field.types
        writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    count = int(embedding.shape[1])
    types = [gguf.TokenType.NORMAL] * (count - 2) + [gguf.TokenType.CONTROL] * 2
    texts = ["t", "1", "t1", *(f"t{index}" for index in range(3, count))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(["t 1"])
    writer.add_bos_token_id(count - 2)
    writer.add_eos_token_id(count - 1)
    writer.add_add_bos_token(False)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
