"""The small random models that are compared, and how each is written in llama.cpp's layout.

The models and exporters are those of `tests/models`, where the same files are compared with
transformers. Sizes that llama.cpp cannot compute are replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

MODELS: Final = Path(__file__).parents[2] / "tests" / "models"
Write = Callable[[Path], Any]
"""Writes a GGUF file without a vocabulary, and returns the same model of transformers."""

Options = Mapping[str, Any]
UNKNOWN_TO_LLAMA_CPP: Final = (
    "exaone4",  # has windows with 64 layers only, and heads of hidden_size / num_attention_heads
    "starcoder2 tied, with a window, without biases",  # needs biases
    "deepseek v3 with yarn and biases",  # has no biases
    "glm4 moe lite with dense layers",  # has dense layers first only
)
"""Cases that llama.cpp cannot load or compute."""
SQUARE: Final[Options] = {"linear_value_head_dim": 16}
"""llama.cpp's gated delta rule has keys and values of one size."""
SIZES: Final[dict[str, Options]] = {
    "qwen3_5": SQUARE,
    "qwen3_next": SQUARE,
    "olmoe": {"num_key_value_heads": 4},
    "granite 4 without experts, with one group": {"num_experts_per_tok": 0},
    "deepseek v2 lite": {"num_hidden_layers": 27},
    "gemma3n": {"hidden_size_per_layer_input": 256, "laurel_rank": 64},
    # A choice of experts that are nearly equal turns on llama.cpp's rounding of GELU.
    "gemma4 26b": {"top_k_experts": 6},
}
"""A case or the first word of its name -> sizes that llama.cpp can compute."""


def cases() -> dict[str, Write]:
    """Return the name and writer of every case."""
    sys.path.insert(0, str(MODELS))
    dense = _module("test_dense_families")
    experts = _module("test_expert_families")
    gemma = _module("test_gemma_models")
    hybrids = _module("test_hybrid_gguf")
    latent = _module("test_latent_models")

    found: dict[str, Write] = {}
    for case, keys in dense.GGUF_KEYS.items():
        name, options = dense.CASES[case]
        found[case] = partial(_dense, name, options | _sizes(case), keys)
    for case, (name, options) in OTHERS.items():
        found[case] = partial(_dense, name, options, {})
    for case in gemma.GGUF_CASES:
        found[case] = partial(_gemma, case, gemma.GGUF_KEYS.get(case, {}) | _sizes(case))
    for case, (name, options) in hybrids.CASES.items():
        found[case] = partial(_hybrid, name, options | _sizes(case))
    for case, (name, options) in (experts.CASES | latent.CASES).items():
        if case not in experts.FOLDERS_ONLY and "ignores" not in case:
            found[case] = partial(_experts, name, options | _sizes(case))
    return {case: write for case, write in found.items() if case not in UNKNOWN_TO_LLAMA_CPP}


def _sizes(case: str) -> dict[str, Any]:
    return dict(SIZES.get(case) or SIZES.get(case.partition(" ")[0], {}))


OTHERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 moe": (
        "Qwen3Moe",
        {
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "head_dim": 32,
        },
    ),
    "phi3": ("Phi3", {"sliding_window": None}),
    "glm4": ("Glm4", {"head_dim": 16}),
    "glm": ("Glm", {"head_dim": 16}),
    "ernie4_5": ("Ernie4_5", {"head_dim": 32}),
    "seed_oss": ("SeedOss", {"head_dim": 32}),
    "exaone4 without windows": (
        "Exaone4",
        {"head_dim": 16, "sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
            "rms_norm_eps": 0.05,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "head_dim": 32,
            "sliding_window": 5,
            "query_pre_attn_scalar": 32,
            "tie_word_embeddings": True,
        },
    ),
}


def _module(name: str) -> Any:
    """Return a module of the folder of the models' tests, which `cases` adds to the path."""
    return import_module(name)


def _dense(name: str, options: Options, keys: Options, path: Path) -> Any:
    export_gguf = _module("gguf_export").export_gguf
    small_model = _module("test_gguf_models").small_model

    model = small_model(name, **options)
    export_gguf(model, path, extra_keys=keys)
    return model


def _gemma(case: str, options: Options, path: Path) -> Any:
    export = _module("gemma_export").export
    build = _module("gemma_models").build

    model = build(case, **options)
    export(model, path)
    return model


def _hybrid(name: str, options: dict[str, Any], path: Path) -> Any:
    convert = _module("gguf_hybrid_export").convert
    save = _module("hybrid_models").save

    with TemporaryDirectory() as folder:
        model = save(name, options, Path(folder))
        convert(Path(folder), path)
    return model


def _experts(name: str, options: dict[str, Any], path: Path) -> Any:
    export_experts = _module("gguf_expert_export").export_experts
    random_model = _module("random_models").random_model

    model = random_model(name, options)
    export_experts(model, path)
    return model
