"""Builds the EncoderSpec and the PoolerSpec of a GGUF file from its metadata and tensors."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import ModelError
from penstock.models.configuration.unsupported_keys import GGUF_ENCODER_NEUTRAL, refuse_unsupported
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec_limits import MAX_LAYERS
from penstock.models.encoder.sentence_transformers import PoolerSpec, Pooling
from penstock.models.encoder.spec import EncoderSpec
from penstock.quant.gguf.gguf_file import GgufFile

_POOLINGS: Final[dict[int, Pooling]] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}


def gguf_encoder_spec(file: GgufFile, rope: RopeSpec | None = None) -> EncoderSpec:
    """Return the spec of a BERT-like encoder, with rotary embedding if `rope` is given. GGUF has no
    keys for biases and embedding tables: the reader infers them from which tensors the file has.
    Raises ModelError naming a key that is missing or not supported."""
    where, name = str(file.path), file.text("general.architecture")
    refuse_unsupported(where, file.metadata, GGUF_ENCODER_NEUTRAL, f"{name}.")
    layers = file.integer(f"{name}.block_count")
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{where}: {name}.block_count {layers} is not in 1..{MAX_LAYERS}")
    positions = _num_rows(file, "position_embd.weight")
    context = file.integer(f"{name}.context_length")
    gated = "blk.0.ffn_gate.weight" in file.tensors
    return EncoderSpec(
        architecture=name,
        hidden_size=file.integer(f"{name}.embedding_length"),
        num_heads=file.integer(f"{name}.attention.head_count"),
        intermediate_size=file.integer(f"{name}.feed_forward_length"),
        vocab_size=_num_rows(file, "token_embd.weight"),
        max_model_len=min(context, positions) if positions else context,
        windows=(0,) * layers,
        norm_eps=file.real(f"{name}.attention.layer_norm_epsilon"),
        positions=positions,
        token_types=_num_rows(file, "token_types.weight"),
        rope=rope,
        activation="silu_mul" if gated else "gelu",
        attention_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
    )


def gguf_pooler_spec(file: GgufFile) -> PoolerSpec:
    """Return the pooling that turns the token states into one embedding vector. GGUF has no key for
    normalization; the vectors are normalized, as other GGUF readers do. Raises ModelError for a
    pooling that produces no embedding."""
    key = f"{file.text('general.architecture')}.pooling_type"
    kind = file.integer(key, 0)
    if kind not in _POOLINGS:
        raise ModelError(f"{file.path}: {key} {kind} is not supported, known are 0 to 3")
    return PoolerSpec(pooling=_POOLINGS[kind], normalize=True)


def _num_rows(file: GgufFile, name: str) -> int:
    """Return the number of rows of a matrix, or 0 if the file does not have the matrix."""
    info = file.tensors.get(name)
    return info.shape[0] if info is not None else 0
