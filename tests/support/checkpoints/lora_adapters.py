"""PEFT folders with random weights, valid and invalid, and an engine with such adapters."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from penstock.engine.protocol import Core
from penstock.engine.types import AdapterSource, AdapterState
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
BLOCK = {name: "self_attn" if name[0] in "qkvo" else "mlp" for name in ALL}
BLOCK["gate_up_proj"] = "mlp"
PREFIX = "base_model.model.model."

SMALL = DecoderSpec(
    architecture="llama",
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    vocab_size=200,
    norm_eps=1e-5,
    rope=RopeSpec(10_000.0, 16),
    layers=(LayerSpec(),) * 2,
    max_model_len=160,
)
"""The sizes of `support/checkpoints/small_llama.py`."""


def sizes(leaf: str, spec: DecoderSpec = SMALL) -> tuple[int, int]:
    """Return (rows, columns) of a module's weight."""
    return {
        "q_proj": (spec.q_rows, spec.hidden_size),
        "k_proj": (spec.kv_rows, spec.hidden_size),
        "v_proj": (spec.kv_rows, spec.hidden_size),
        "qkv_proj": (spec.q_rows + 2 * spec.kv_rows, spec.hidden_size),
        "o_proj": (spec.hidden_size, spec.q_rows),
        "gate_proj": (spec.intermediate_size, spec.hidden_size),
        "up_proj": (spec.intermediate_size, spec.hidden_size),
        "gate_up_proj": (2 * spec.intermediate_size, spec.hidden_size),
        "down_proj": (spec.hidden_size, spec.intermediate_size),
    }[leaf]


def draw_tensors(
    spec: DecoderSpec = SMALL,
    *,
    rank: int = 4,
    targets: Sequence[str] = ALL,
    layers: Sequence[int] | None = None,
    ranks: Mapping[str, int] | None = None,
    seed: int = 0,
    size: float = 1.0,
    prefix: str = PREFIX,
) -> dict[str, np.ndarray]:
    """Return random factors of all `targets`. `ranks`: module -> another rank. `size`: the norm of
    B A relative to a weight."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(len(spec.layers)) if layers is None else layers:
        for leaf in targets:
            rows, columns = sizes(leaf, spec)
            r = (ranks or {}).get(leaf, rank)
            name = f"{prefix}layers.{layer}.{BLOCK.get(leaf, 'self_attn')}.{leaf}"
            a = random.standard_normal((r, columns)) / columns**0.5
            b = random.standard_normal((rows, r)) * size / r**0.5
            tensors[f"{name}.lora_A.weight"] = a.astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = b.astype(np.float32)
    return tensors


def write_adapter(
    folder: Path,
    tensors: Mapping[str, np.ndarray] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    **drawn: Any,
) -> Path:
    """Write a folder with `tensors`, or random ones, and a config that fits them. `config` adds
    keys; None is written as null."""
    folder.mkdir(parents=True, exist_ok=True)
    if tensors is None:
        tensors = draw_tensors(**drawn)
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    keys = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "base",
        "r": drawn.get("rank", 4),
        "lora_alpha": 8,
        "lora_dropout": 0.05,
        "bias": "none",
        "target_modules": list(drawn.get("targets", ALL)),
        "rank_pattern": dict(drawn.get("ranks") or {}),
        "alpha_pattern": {},
        "init_lora_weights": True,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "peft_version": "0.19.1",
    } | dict(config or {})
    (folder / "adapter_config.json").write_text(json.dumps(keys))
    return folder


def load(core: Core, source: AdapterSource) -> AdapterState:
    """Run steps until the adapter is loaded. Raises AdapterRefused."""
    future = core.add_adapter(source)
    deadline = time.monotonic() + 30
    while not future.done():
        core.step()
        assert time.monotonic() < deadline
    return future.result()


def have(core: Core, folders: dict[str, Path], *names: str) -> None:
    """Load the adapters of these folders; the folders' names are the revisions."""
    for name in names:
        load(core, AdapterSource(name, str(folders[name])))
