"""Converts real Whisper weights from package registries to Hugging Face folders."""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Arrays = dict[str, np.ndarray]

# Names in OpenAI's checkpoints -> names in transformers' folders.
_OPENAI = (
    (r"\bblocks\b", "layers"),
    (r"\bmlp\.0\b", "fc1"),
    (r"\bmlp\.2\b", "fc2"),
    (r"\bmlp_ln\b", "final_layer_norm"),
    (r"\bcross_attn_ln\b", "encoder_attn_layer_norm"),
    (r"\bcross_attn\b", "encoder_attn"),
    (r"\battn_ln\b", "self_attn_layer_norm"),
    (r"(?<!_)\battn\b", "self_attn"),
    (r"\b(query|key|value)\b", lambda found: f"{found[1][0]}_proj"),
    (r"\bout\b", "out_proj"),
    (r"\bpositional_embedding\b", "embed_positions.weight"),
    (r"\btoken_embedding\b", "embed_tokens"),
    (r"\bencoder\.ln_post\b", "encoder.layer_norm"),
    (r"\bdecoder\.ln\b", "decoder.layer_norm"),
)
_SYMBOLS = (
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))"),
    *("(((", ")))", "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_SUPPRESSED_NAMES = ("transcribe", "translate", "startoftranscript", "startofprev", "startoflm")


def openai_folder(source: Path, folder: Path) -> Path:
    """Write the folder of OpenAI's tiny.en. `source`: has tiny.en.pt and gpt2.tiktoken."""
    loaded = torch.load(source / "tiny.en.pt", weights_only=True, map_location="cpu")
    dims: dict[str, int] = loaded["dims"]
    arrays: Arrays = {}
    for name, tensor in loaded["model_state_dict"].items():
        for pattern, new in _OPENAI:
            name = re.sub(pattern, new, name)
        arrays[f"model.{name}"] = tensor.numpy()
    specials = ["startoftranscript", "en", "translate", "transcribe"]
    specials += ["startoflm", "startofprev", "nocaptions", "notimestamps"]
    tokenizer = _tiktoken(source / "gpt2.tiktoken")
    # The checkpoint numbers the 99 languages, of which it knows only the first.
    languages = [f"<|unused{index}|>" for index in range(98)]
    named = [f"<|{name}|>" for name in specials]
    _add_specials(tokenizer, ["<|endoftext|>", *named[:2], *languages, *named[2:]])
    config = {
        "vocab_size": dims["n_vocab"],
        "num_mel_bins": dims["n_mels"],
        "d_model": dims["n_audio_state"],
        "encoder_layers": dims["n_audio_layer"],
        "encoder_attention_heads": dims["n_audio_head"],
        "encoder_ffn_dim": 4 * dims["n_audio_state"],
        "decoder_layers": dims["n_text_layer"],
        "decoder_attention_heads": dims["n_text_head"],
        "decoder_ffn_dim": 4 * dims["n_text_state"],
        "max_source_positions": dims["n_audio_ctx"],
        "max_target_positions": dims["n_text_ctx"],
    }
    _write(folder, arrays, config, tokenizer, suppressed_text(tokenizer))
    return folder


def ctranslate2_folder(source: Path, folder: Path) -> Path:
    """Write the folder of Whisper base from a CTranslate2 container."""
    with (source / "model.bin").open("rb") as file:
        read = _read_container(file)
    width = read["encoder/conv1/weight"].shape[0]
    arrays = dict(_renamed(name, array) for name, array in _split(read))
    own = json.loads((source / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    config = {
        "vocab_size": read["decoder/embeddings/weight"].shape[0],
        "num_mel_bins": 80,
        "d_model": width,
        "encoder_layers": 6,
        "encoder_attention_heads": 8,
        "encoder_ffn_dim": 4 * width,
        "decoder_layers": 6,
        "decoder_attention_heads": 8,
        "decoder_ffn_dim": 4 * width,
    }
    _write(folder, arrays, config, tokenizer, own["suppress_ids"], own["suppress_ids_begin"])
    shutil.copy(source / "tokenizer.json", folder / "tokenizer.json")
    return folder


def suppressed_text(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of symbols that are not speech, as in OpenAI's tokenizer, and of control
    tokens."""
    symbols = list('"#()*+/:;<=>@[\\]^_`{|}~「」『』')
    symbols += _SYMBOLS
    musical = set("♩♪♫♬♭♮♯")
    found = {tokenizer.encode(text, add_special_tokens=False).ids[0] for text in (" -", " '")}
    for symbol in [*symbols, *musical]:
        for text in (symbol, f" {symbol}"):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            if len(ids) == 1 or symbol in musical:
                found.add(ids[0])
    found.update(
        tokenizer.token_to_id(f"<|{name}|>") for name in (*_SUPPRESSED_NAMES, "nocaptions")
    )
    return sorted(found)


def _write(
    folder: Path,
    arrays: Arrays,
    config: dict[str, Any],
    tokenizer: Tokenizer,
    suppressed: list[int],
    suppressed_first: list[int] | None = None,
) -> None:
    end = tokenizer.token_to_id("<|endoftext|>")
    keys = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": tokenizer.token_to_id("<|startoftranscript|>"),
        **config,
    }
    space = tokenizer.encode(" ", add_special_tokens=False).ids
    generation = {
        "suppress_tokens": suppressed,
        "begin_suppress_tokens": suppressed_first or [*space, end],
        "is_multilingual": config["vocab_size"] >= 51_865,
        "eos_token_id": end,
    }
    save_file(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "config.json").write_text(json.dumps(keys))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    tokenizer.save(str(folder / "tokenizer.json"))


def _tiktoken(path: Path) -> Tokenizer:
    """Return a byte-level BPE tokenizer with the ranks of a tiktoken file."""
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in path.read_bytes().splitlines())
    }
    letters = _byte_letters()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocab = {spelled(token): rank for token, rank in ranks.items()}
    merges = [
        tuple(map(spelled, _halves(token, rank, ranks)))
        for token, rank in sorted(ranks.items(), key=lambda pair: pair[1])
        if len(token) > 1
    ]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_letters() -> dict[int, str]:
    """Return the letter of each byte in GPT-2's alphabet."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two tokens that are merged to `token`, by merging bytes with lower ranks."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        best = min(range(len(pairs)), key=pairs.__getitem__)
        assert pairs[best] < rank
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def _add_specials(tokenizer: Tokenizer, names: list[str]) -> None:
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )


def _read_container(file: BinaryIO) -> Arrays:
    """Return the arrays of a CTranslate2 container of version 6."""

    def unpack(form: str) -> tuple[int, ...]:
        return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))

    def text() -> str:
        return file.read(unpack("H")[0])[:-1].decode()

    (version,) = unpack("I")
    assert version == 6, version
    text()
    _, count = unpack("II")
    arrays: Arrays = {}
    for _ in range(count):
        name = text()
        (rank,) = unpack("B")
        shape = unpack(f"{rank}I")
        kind, size = unpack("BI")
        data = file.read(size)
        if kind == 4:
            arrays[name] = np.frombuffer(data, np.float16).reshape(shape)
    return arrays


def _split(arrays: Arrays) -> list[tuple[str, np.ndarray]]:
    """Return (name, array) with the fused projections of attention split."""
    found: list[tuple[str, np.ndarray]] = []
    for name, array in arrays.items():
        fused = re.fullmatch(r"(.*attention)/linear_(\d)/(.*)", name)
        if fused is None:
            found.append((name, array))
            continue
        path, number, last = fused.groups()
        names = {"0": "qkv" if "self" in path else "q", "1": "o" if "self" in path else "kv"}
        letters = names.get(number, "o")
        for letter, part in zip(letters, np.split(array, len(letters)), strict=True):
            if not (letter == "k" and last == "bias"):  # zeros: the key has no bias
                found.append((f"{path}/{letter}/{last}", part))
    return found


def _renamed(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    for pattern, new in (
        (r"layer_(\d+)", r"layers/\1"),
        (r"/self_attention/layer_norm", "/self_attn_layer_norm"),
        (r"/attention/layer_norm", "/encoder_attn_layer_norm"),
        (r"/self_attention/o/", "/self_attn/out_proj/"),
        (r"/attention/o/", "/encoder_attn/out_proj/"),
        (r"/self_attention/(\w)/", r"/self_attn/\1_proj/"),
        (r"/attention/(\w)/", r"/encoder_attn/\1_proj/"),
        (r"/ffn/layer_norm", "/final_layer_norm"),
        (r"/ffn/linear_0", "/fc1"),
        (r"/ffn/linear_1", "/fc2"),
        (r"/gamma", "/weight"),
        (r"/beta", "/bias"),
        (r"/position_encodings/encodings", "/embed_positions/weight"),
        (r"/embeddings/", "/embed_tokens/"),
    ):
        name = re.sub(pattern, new, name)
    return f"model.{name.replace('/', '.')}", array
