"""Small base models with adapter slots, random adapters for them, and the same models with merged
weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import load_file, save_file

from penstock.adapters.adapter import Adapter
from penstock.adapters.peft_folder import read_adapter
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.runtime import CpuRuntime, Runtime, start_runtime
from penstock.scheduler import Admit, AppendBlocks, Chunk, StepPlan
from tests.support.checkpoints.lora_adapters import SMALL, write_adapter
from tests.support.checkpoints.small_llama import CONTEXT, write_small_llama

AnyRuntime = TypeVar("AnyRuntime", bound=Runtime)
BLOCK, ROWS = 16, 6
LORA = LoraSettings(max_adapters=4, max_rank=16)
MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def settings(model: str, **options: Any) -> EngineSettings:
    return EngineSettings(
        **{
            "model": model,
            "max_model_len": CONTEXT,
            "max_num_seqs": ROWS,
            "max_num_batched_tokens": CONTEXT,
            "block_size": BLOCK,
            "threads": 2,
            "lora": LORA,
        }
        | options
    )


def start(path: Path, **options: Any) -> CpuRuntime:
    files = files_at(path, path.name) if path.is_dir() else ModelFiles(path.name, "gguf", path)
    return start_runtime(files, settings(str(path), **options))


def draw_adapters(folder: Path, count: int = 4, spec: DecoderSpec = SMALL) -> list[Adapter]:
    """Write random adapters of different ranks; the second one adapts attention only."""
    ranks = (4, 1, 7, 16)
    return [
        read_adapter(
            write_adapter(
                folder / f"adapter-{index}",
                spec=spec,
                seed=index,
                rank=ranks[index],
                size=0.3,
                **({"targets": ("q_proj", "v_proj", "o_proj")} if index == 1 else {}),
            ),
            spec,
            LORA,
        )
        for index in range(count)
    ]


def write_merged(base: Path, adapter: Adapter, folder: Path) -> Path:
    """Write the model `base` with the adapter added to its weights, in float32."""
    tensors = {
        name: values.astype(np.float32)
        for name, values in load_file(base / "model.safetensors").items()
    }
    for index, layer in enumerate(adapter.layers):
        for projection, factors in layer.items():
            name = f"model.layers.{index}.{MODULES[projection]}.weight"
            tensors[name] = tensors[name] + factors.b @ factors.a
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text((base / "config.json").read_text())
    return folder


def write_quantized(folder: Path, kind: str, spec: DecoderSpec = SMALL) -> tuple[Path, Path]:
    """Write a small Llama as a GGUF of this type, and a folder of the same weights in float32."""
    source = write_small_llama(
        folder / "source", width=spec.hidden_size, head_dim=spec.head_dim, ff=spec.intermediate_size
    )
    import gguf  # not installed on machines with a GPU
    from spec_gguf import spec_gguf

    path, exact = folder / f"{kind}.gguf", folder / f"{kind}-exact"
    tensors = {}
    with spec_gguf(path, spec) as writer:
        for name, values in load_file(source / "model.safetensors").items():
            wanted = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
            stored = _interleaved(spec, name, values.astype(np.float32))
            packed = gguf.quants.quantize(stored, wanted)
            exactly = gguf.quants.dequantize(packed, wanted)
            tensors[name] = _interleaved(spec, name, exactly, back=True)
            short = name
            for old, new in GGUF_NAMES.items():
                short = short.replace(old, new)
            writer.add_tensor(short, packed, raw_dtype=wanted)
    exact.mkdir()
    save_file(
        {name: np.ascontiguousarray(t) for name, t in tensors.items()}, exact / "model.safetensors"
    )
    (exact / "config.json").write_text((source / "config.json").read_text())
    return path, exact


def _interleaved(spec: DecoderSpec, name: str, values: Any, *, back: bool = False) -> Any:
    """Rows of q and k as converters of the llama architecture store them."""
    heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}.get(name.split(".")[-2], 0)
    if not heads:
        return values
    pairs = (spec.head_dim // 2, 2) if back else (2, spec.head_dim // 2)
    halves = values.reshape(heads, *pairs, values.shape[1])
    return halves.swapaxes(1, 2).reshape(values.shape)


def with_adapters(runtime: AnyRuntime, folder: Path) -> AnyRuntime:
    """Install the random adapters, each in the slot of its number."""
    assert runtime.adapters is not None
    for slot, adapter in enumerate(draw_adapters(folder, spec=runtime.adapters.spec)):
        runtime.adapters.install(slot, runtime.adapters.pack(adapter))
    return runtime


def last_logits(runtime: CpuRuntime, prompts: Sequence[tuple[tuple[int, ...], int]]) -> Any:
    """Return [prompts, V]: logits of the last token of each prompt, with the adapter in its
    slot."""
    rows, blocks, chunks, taken = [], [], [], 0
    for row, (tokens, slot) in enumerate(prompts):
        rows.append(Admit(row, tokens, len(tokens), Sampling(), 0, None, adapter_slot=slot))
        needed = -(-len(tokens) // BLOCK)
        blocks.append(AppendBlocks(row, tuple(range(taken, taken + needed))))
        chunks.append(Chunk(row, 0, len(tokens), True))
        taken += needed
    plan = StepPlan(1, (), tuple(rows), tuple(blocks), tuple(chunks))
    runtime._rows.apply(plan)
    return np.array(runtime._backend.logits(runtime._rows.inputs(plan.chunks)))
