"""The metadata of a GGUF file as an EncoderSpec, and as what is made of a model's states."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.base.errors import ModelError
from penstock.models.decoder.spec import MAX_LAYERS, RopeSpec
from penstock.models.encoder.sentence_transformers import PoolerSpec, Pooling
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.families.gguf_config import require_equal, rope_scaling
from penstock.models.families.unsupported_keys import GGUF_ENCODER_NEUTRAL, refuse_unsupported
from penstock.quant.gguf.gguf_file import GgufFile, read_head

ROTARY: Final = "nomic-bert"
GGUF_ENCODERS: Final = ("bert", ROTARY)
NOMIC_THETA: Final = 1000.0
# Of a decoder 0 says that it writes, and 4 that it ranks.
DECODER_POOLINGS: Final = (1, 2, 3)
POOLINGS: Final[dict[int, Pooling]] = {0: "mean", 1: "mean", 2: "cls", 3: "last"}


def gguf_encoder_spec(file: GgufFile) -> EncoderSpec:
    """The encoder of a file whose architecture is one of GGUF_ENCODERS. Biases and tables are there
    where their tensors are: GGUF has no keys for them. Raises ModelError naming the key."""
    name = file.text("general.architecture")
    where = str(file.path)
    refuse_unsupported(where, file.metadata, GGUF_ENCODER_NEUTRAL, f"{name}.")
    width = file.integer(f"{name}.embedding_length")
    heads = file.integer(f"{name}.attention.head_count")
    layers = file.integer(f"{name}.block_count")
    if not 1 <= layers <= MAX_LAYERS:
        raise ModelError(f"{where}: {name}.block_count {layers} is not in 1..{MAX_LAYERS}")
    positions = _rows(file, "position_embd.weight")
    context = file.integer(f"{name}.context_length")
    rope = None
    if name == ROTARY:
        theta = file.real(f"{name}.rope.freq_base", NOMIC_THETA)
        head_dim = width // max(heads, 1)
        require_equal(file, f"{name}.rope.dimension_count", head_dim)
        rope = RopeSpec(theta, head_dim, rope_scaling(file, name))
    gated = "blk.0.ffn_gate.weight" in file.tensors
    spec = EncoderSpec(
        architecture=name,
        width=width,
        heads=heads,
        ff=file.integer(f"{name}.feed_forward_length"),
        vocab=_rows(file, "token_embd.weight"),
        max_model_len=min(context, positions) if positions else context,
        windows=(0,) * layers,
        norm_eps=file.real(f"{name}.attention.layer_norm_epsilon"),
        positions=positions,
        token_types=_rows(file, "token_types.weight"),
        rope=rope,
        activation="silu_mul" if gated else "gelu",
        attention_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
    )
    spec.check(where)
    return spec


def gguf_pooler_spec(file: GgufFile) -> PoolerSpec:
    """How the states become a vector. GGUF does not say whether it has length one; the tools that
    read it make it so. Raises ModelError for a pooling that is none of an embedding model."""
    key = f"{file.text('general.architecture')}.pooling_type"
    kind = file.integer(key, 0)
    if kind not in POOLINGS:
        raise ModelError(f"{file.path}: {key} {kind} is not supported, known are 0 to 3")
    return PoolerSpec(pooling=POOLINGS[kind], normalize=True)


def is_gguf_encoder(file: GgufFile) -> bool:
    """Whether the file holds an encoder, which can do nothing but embed."""
    return file.text("general.architecture") in GGUF_ENCODERS


def is_gguf_embedder(path: Path) -> bool:
    """Whether the file holds an encoder, or a decoder that says how its states become a vector.
    Raises ModelError."""
    head = read_head(path)
    name = head.get("general.architecture")
    return name in GGUF_ENCODERS or head.get(f"{name}.pooling_type") in DECODER_POOLINGS


def _rows(file: GgufFile, name: str) -> int:
    """Of a matrix; 0 where it is not there."""
    info = file.tensors.get(name)
    return info.shape[0] if info is not None else 0
