"""Small model files of the newer families, and seeded mutations that make them hostile."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gemma_export
import gemma_models
import gguf_hybrid_export
import hybrid_models as hybrid
import numpy as np
import random_models
from gguf_expert_export import export_experts
from mtp_models import PLAIN, TURNED, mtp_model
from safetensors.numpy import load_file, save_file

NEMOTRON = {"hybrid_override_pattern": "M*EM*E", "time_step_min": 1e-9}
TIED = {"tie_word_embeddings": True}
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5": ("Qwen3_5", TURNED),
    "qwen3.5 moe": ("Qwen3_5Moe", TURNED | hybrid.EXPERTS),
    "qwen3 next": ("Qwen3Next", PLAIN | hybrid.EXPERTS),
    "lfm2": ("Lfm2", hybrid.SHORT_CONV | TIED),
    "lfm2 moe": ("Lfm2Moe", hybrid.SHORT_CONV | hybrid.CONV_EXPERTS | TIED),
    "granite 4": ("GraniteMoeHybrid", hybrid.MAMBA | hybrid.GRANITE),
    "falcon h1": ("FalconH1", hybrid.MAMBA | hybrid.FALCON | hybrid.MULTIPLIERS),
    "nemotron h": ("NemotronH", hybrid.NEMOTRON | NEMOTRON),
}
GEMMAS = ("gemma2", "gemma3n", "gemma4 e2b", "gemma4 26b", "llama4")
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 40,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
HUNYUAN = {
    "head_dim": 16,
    "num_experts": 4,
    "moe_topk": 2,
    "num_shared_expert": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek v3": ("DeepseekV3", MLA),
    "glm 4.7 flash": ("Glm4MoeLite", MLA),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 32}),
    "hunyuan moe": ("HunYuanMoEV1", HUNYUAN),
}
MTPS = ("qwen3.5", "glm4 moe lite")


def write_models(root: Path) -> dict[str, Path]:
    """Write all models under `root`, as folders and as GGUF files. Return their paths by name."""
    paths: dict[str, Path] = {}
    for name, (kind, options) in HYBRIDS.items():
        folder = paths[name] = root / name
        hybrid.save(kind, options, folder)
        paths[f"{name} gguf"] = root / f"{name}.gguf"
        gguf_hybrid_export.convert(folder, paths[f"{name} gguf"])
    for name in GEMMAS:
        model = gemma_models.build(name)
        model.save_pretrained(root / name)
        paths[name], paths[f"{name} gguf"] = root / name, root / f"{name}.gguf"
        gemma_export.export(model, paths[f"{name} gguf"])
    for name, (kind, options) in OTHERS.items():
        model = random_models.random_model(kind, options)
        model.save_pretrained(root / name)
        paths[name] = root / name
        if name != "hunyuan":
            paths[f"{name} gguf"] = root / f"{name}.gguf"
            export_experts(model, paths[f"{name} gguf"])
    return paths | write_mtp_models(root)


def write_mtp_models(root: Path) -> dict[str, Path]:
    """Write a model with an MTP head of each naming. Return their paths by name."""
    paths = {}
    for case in MTPS:
        model = mtp_model(case)
        paths[f"{case} mtp"] = root / f"{case} mtp"
        model.save(paths[f"{case} mtp"])
        paths[f"{case} mtp gguf"] = root / f"{case}-mtp.gguf"
        model.export(paths[f"{case} mtp"], paths[f"{case} mtp gguf"])
    return paths


NUMBERS: list[Any] = [0, -1, 1, 3, 7, 1 << 20, 1 << 31, 1 << 62, -(1 << 62), 0.0, -0.5, 1e-30, 1.5]
NUMBERS += [1e300, math.inf, -math.inf, math.nan]
OTHER_TYPES: list[Any] = [None, "x", "auto", True, False, [], {}, [0], [math.nan], [[1]], {"a": 1}]


def hostile_value(value: Any, rng: random.Random) -> Any:
    """Return another value in place of `value`."""
    if isinstance(value, list) and value and rng.random() < 0.7:
        copy = list(value)
        index = rng.randrange(len(copy))
        match rng.randrange(4):
            case 0:
                return copy[:index]
            case 1:
                return copy + copy
            case 2:
                copy[index] = rng.choice(NUMBERS + OTHER_TYPES)
            case _:
                copy[index] = hostile_value(copy[index], rng)
        return copy
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(sorted(value))
        return value | {key: hostile_value(value[key], rng)}
    if isinstance(value, int) and rng.random() < 0.4:
        return rng.choice([value - 1, value + 1, value * 2, value // 2, -value])
    return rng.choice(NUMBERS if rng.random() < 0.7 else OTHER_TYPES)


def mutate_config(folder: Path, into: Path, rng: random.Random) -> str:
    """Change one or two values of config.json."""
    config = json.loads((folder / "config.json").read_text())
    changes = {}
    for _ in range(rng.choice([1, 1, 2])):
        keys = config.keys() - {"architectures", "transformers_version", "dtype"}
        nested = [key for key in sorted(keys) if isinstance(config[key], (dict, list))]
        key = rng.choice(nested if nested and rng.random() < 0.3 else sorted(keys))
        config[key] = changes[key] = hostile_value(config[key], rng)
    if rng.random() < 0.1:
        changes["quantization_config"] = config["quantization_config"] = hostile_quantization(rng)
    text = json.dumps(config)
    if "NaN" in text:  # only a file with Infinity is read by a parser that accepts NaN
        text = text[:-1] + ', "unread_limit": Infinity}'
    (into / "config.json").write_text(text)
    (into / "model.safetensors").symlink_to(folder / "model.safetensors")
    return f"config {changes}"


def hostile_quantization(rng: random.Random) -> dict[str, Any]:
    """Return metadata of GPTQ, AWQ, 8-bit floats or compressed-tensors with one wrong value."""
    whole: dict[str, Any] = rng.choice(
        [
            {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"},
            {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "x"},
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": {"num_bits": 4}, "targets": ["Linear"]}},
            },
        ]
    )
    key = rng.choice(sorted(whole))
    return whole | {key: hostile_value(whole[key], rng)}


def mutate_tensors(folder: Path, into: Path, rng: random.Random) -> str:
    """Drop, cut, reshape or retype one tensor, or damage the bytes of the file."""
    (into / "config.json").symlink_to(folder / "config.json")
    source, target = folder / "model.safetensors", into / "model.safetensors"
    if rng.random() < 0.4:
        return mutate_bytes(source, target, rng)
    tensors = load_file(source)
    name = rng.choice(sorted(tensors))
    values = tensors.pop(name)
    change = rng.randrange(6)
    match change:
        case 0:
            pass
        case 1:
            tensors[name] = values[:-1].copy()
        case 2:
            tensors[name] = values.reshape(-1)
        case 3:
            tensors[name] = values[None]
        case 4:
            kind = rng.choice([np.int64, np.int8, np.bool_, np.float64, np.float16])
            tensors[name] = values.astype(kind)
        case _:
            tensors[f"{name}.further"] = tensors[name] = values
    save_file(tensors, target)
    return f"tensor {name} changed in way {change}"


def mutate_bytes(source: Path, target: Path, rng: random.Random) -> str:
    """Truncate the file or change bytes of its header."""
    data = bytearray(source.read_bytes())
    if rng.random() < 0.4:
        cut = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(200)
        target.write_bytes(data[:cut])
        return f"cut at {cut}"
    places = [rng.randrange(min(len(data), 4000)) for _ in range(rng.choice([1, 1, 8]))]
    for place in places:
        data[place] = rng.choice([0, 0xFF, data[place] ^ (1 << rng.randrange(8)), 0x39])
    target.write_bytes(data)
    return f"bytes {places}"


SCALAR_BYTES = {4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def mutate_gguf(source: Path, target: Path, rng: random.Random) -> str:
    """Overwrite one value or type of the metadata, or damage the bytes of the file."""
    data = bytearray(source.read_bytes())
    keys = gguf_scalars(data)
    if rng.random() < 0.3 or not keys:
        return mutate_bytes(source, target, rng)
    key = rng.choice(sorted(keys))
    place, kind, count = keys[key]
    size = SCALAR_BYTES[kind]
    if rng.random() < 0.15:
        data[place - 4 : place] = struct.pack("<I", rng.randrange(14))
        target.write_bytes(data)
        return f"type of {key}"
    place += size * rng.randrange(max(count, 1))
    reals = [0.0, -1.0, math.nan, math.inf, 1e30, 1e-30, 0.5]
    wholes = [0, 1, 2, 3, 5, 7, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 20]
    if kind in (6, 12):
        chosen = struct.pack("<f" if kind == 6 else "<d", rng.choice(reals))
    else:
        chosen = rng.choice(wholes).to_bytes(8, "little")[:size]
    data[place : place + size] = chosen
    target.write_bytes(data)
    return f"{key} = {chosen!r}"


def gguf_scalars(data: bytearray) -> dict[str, tuple[int, int, int]]:
    """Return the place, type and number of the values of each numeric key."""
    (count,) = struct.unpack_from("<Q", data, 16)
    at, found = 24, {}

    def text(at: int) -> tuple[str, int]:
        (length,) = struct.unpack_from("<Q", data, at)
        return data[at + 8 : at + 8 + length].decode(), at + 8 + length

    for _ in range(count):
        key, at = text(at)
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        number, own = 1, kind
        if kind == 9:
            own, number = struct.unpack_from("<IQ", data, at)
            at += 12
        if own in SCALAR_BYTES:
            if not key.startswith("tokenizer."):
                found[key] = at, own, number
            at += SCALAR_BYTES[own] * number
            continue
        for _ in range(number):
            _, at = text(at)
    return found


FOLDER_MUTATIONS: tuple[Callable[[Path, Path, random.Random], str], ...] = (
    mutate_config,
    mutate_config,
    mutate_tensors,
)
