"""GGUF files whose metadata describe a spec; the test adds the tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf

from penstock.models.decoder.spec import DecoderSpec


@contextmanager
def spec_gguf(path: Path, spec: DecoderSpec) -> Iterator[gguf.GGUFWriter]:
    """Yield a writer with the metadata of `spec`. The file is complete when the block ends."""
    writer = gguf.GGUFWriter(str(path), spec.architecture)
    writer.add_block_count(len(spec.layers))
    writer.add_context_length(spec.max_model_len)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(spec.rope.theta)
    mixture = spec.layers[0].experts
    if mixture is not None:
        writer.add_expert_count(mixture.count)
        writer.add_expert_used_count(mixture.per_token)
        writer.add_expert_feed_forward_length(mixture.intermediate_size)
    yield writer
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
