"""Settings of an engine, of the HTTP server and of its store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from penstock.config.step_sizes import StepSizes

# Names of `text.tool_parsers`; "none" leaves tool calls in the text.
ToolCallParserName = Literal[
    "none",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "functiongemma",
    "gemma3",
    "gemma4",
    "glm",
    "granite",
    "harmony",
    "hermes",
    "kimi",
    "lfm2",
    "llama3",
    "minimax_m1",
    "minimax_m2",
    "mistral",
    "mistral_json",
    "nemotron",
    "olmo",
    "phi",
    "pythonic",
    "qwen3_coder",
    "seed_oss",
]

# The ISAs that csrc/cpu/isa.cmake builds.
CpuIsaName = Literal["auto", "scalar", "neon", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx"]


class LoraSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter that is loaded before the model serves.

    `alias`: its name in requests. `source`: a PEFT folder or a Hugging Face id. `pinned`: it stays
    in the engine's memory.
    """

    alias: str
    source: str
    pinned: bool = False


class LoraSettings(msgspec.Struct, frozen=True):
    """LoRA settings of one model.

    `max_adapters`: loaded aliases. `max_rank`: largest rank of an adapter. `max_bytes`: memory of
    the adapters in use; others are read from their files when a request needs them. `preload`:
    adapters that are loaded at the start.
    """

    max_adapters: int = 16
    max_rank: int = 256
    max_bytes: int = 8 * 1024**3
    preload: tuple[LoraSource, ...] = ()


class EngineSettings(msgspec.Struct, frozen=True):
    """Settings of one engine.

    Model:
      `dtype`: "auto" computes in the format of the weights (integers, bfloat16); "f32" dequantizes
      everything to float32.
      `quantization`: quantize float weights while loading. "int8" and "int4" apply to layers, with
      8 bits for embedding and head; "fp8" (GPU) applies to layers only.
      `tool_call_parser`: format of the model's tool calls; None detects it from the chat template.
      `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`: defaults of requests; None
      uses the model's own.
      `lora`: None switches the LoRA runtime off.

    Device and kernels:
      `device`: "cpu", "cuda" or "cuda:N"; "auto" uses the first GPU, if there is one.
      `tensor_parallel_size`: number of GPUs that share the model, from `device` on; memory sizes
      are per GPU, except `cpu_kv_cache_memory_mb`.
      `kernel_backend`: "native" and "reference" run on a CPU; "triton" avoids the CUDA library.
      `disabled_kernels`: comma-separated kernels of the CUDA library that Triton replaces;
      "packaged" compiles Triton's kernels at the start.
      `cpu_isa`: instruction set of the CPU kernels; "auto" measures the fastest once per machine.
      `threads`: compute threads; None uses all cores that this process may use.
      `deterministic`: on a GPU, results do not depend on the rest of the batch, at a lower speed;
      on a CPU they never do.

    KV cache:
      `max_model_len`: context in tokens; None uses the model's, clamped to what the cache holds.
      `kv_cache_memory_mb`: MiB; None is enough for `max_num_seqs` sequences of 1,024 tokens and for
      one full context, or on a GPU all memory that is left.
      `cpu_kv_cache_memory_mb`: MiB of CPU memory for KV blocks evicted from a GPU's prefix cache.
      `kv_cache_dtype`: "auto" is f16, bfloat16 on a GPU, or f32 with dtype f32; "f8e4m3" needs a
      GPU.
      `block_size`: tokens in a KV block. `enable_prefix_caching`: reuse KV blocks of equal prompt
      prefixes. `no_kv_cache`: recompute the whole context in every step.

    Scheduling:
      `max_num_seqs` and `max_num_batched_tokens`: sequences and tokens of a step; None depends on
      the device (`config.step_sizes`).
      `max_queue`: waiting sequences; more are refused with 429.
      `speculative_algorithm`: "ngram" copies draft tokens from the request's own text; answers stay
      the same.
    """

    model: str = "smollm2-135m-instruct"
    dtype: Literal["auto", "f32"] = "auto"
    quantization: Literal["int8", "int4", "fp8"] | None = None
    kv_cache_dtype: Literal["auto", "f16", "f32", "f8e4m3"] = "auto"
    device: str = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    kv_cache_memory_mb: int | None = None
    cpu_kv_cache_memory_mb: int = 0
    block_size: int = 16
    max_num_seqs: int | None = None
    max_queue: int = 1024
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    no_kv_cache: bool = False
    speculative_algorithm: Literal["none", "ngram"] = "none"
    deterministic: bool = False
    threads: int | None = None
    kernel_backend: Literal["auto", "native", "reference", "triton"] = "auto"
    disabled_kernels: str = ""
    cpu_isa: CpuIsaName = "auto"
    tool_call_parser: ToolCallParserName | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    lora: LoraSettings | None = None

    def step_sizes(self, default: StepSizes) -> StepSizes:
        """The largest step; sizes that are not set come from `default`."""
        return StepSizes(
            default.max_num_seqs if self.max_num_seqs is None else self.max_num_seqs,
            default.max_num_batched_tokens
            if self.max_num_batched_tokens is None
            else self.max_num_batched_tokens,
        )


class ModelSettings(msgspec.Struct, frozen=True):
    """One model of a server.

    `id`: its name in requests; "" uses the name of its files. `aliases`: additional names.
    `on_demand`: the first request that names it loads it, also after an unload. Other models are
    loaded at the start and stay unloaded after an operator unloads them.
    """

    engine: EngineSettings
    id: str = ""
    aliases: tuple[str, ...] = ()
    on_demand: bool = False


class StoreSettings(msgspec.Struct, frozen=True):
    """Storage of responses, files, sessions and skills.

    `url`: database, sqlite:///FILE or postgresql://USER@HOST/DATABASE. `blobs` (contents of files)
    and `skills_dir`: folders or fsspec URLs. None puts each under PENSTOCK_HOME (`with_defaults`).
    `..._expiry_s`: seconds from creation, for sessions from their last change, until deletion; 0
    keeps responses until they are deleted. `max_...`: beyond this number or size the oldest are
    deleted; skills are never deleted, further uploads are refused.
    """

    url: str | None = None
    blobs: str | None = None
    skills_dir: str | None = None
    response_expiry_s: int = 30 * 24 * 3600
    max_responses_bytes: int = 16 * 1024**3
    session_expiry_s: int = 30 * 60
    max_sessions: int = 4096
    max_sessions_bytes: int = 4 * 1024**3
    file_expiry_s: int = 30 * 60
    max_files: int = 4096
    max_files_bytes: int = 16 * 1024**3
    max_skills_bytes: int = 4 * 1024**3

    def with_defaults(self, home: Path) -> StoreSettings:
        """Return the settings with every location set; those that were not are under `home`."""
        blobs = self.blobs or str(home / "blobs")
        return msgspec.structs.replace(
            self,
            url=self.url or f"sqlite:///{home / 'penstock.db'}",
            blobs=blobs,
            skills_dir=self.skills_dir or blobs,
        )


class ServerSettings(msgspec.Struct, frozen=True):
    """Settings of the HTTP server.

    `workers`: API processes, which all use the same engines. `drain_timeout_s`: time for open
    requests to finish after SIGTERM. `stall_timeout_s`: time after which a client that neither
    reads its stream nor sends its body is disconnected. `max_connections`: per API process.
    `fetch_allow`: private addresses and networks from which URLs in requests may be fetched.
    `openai_compat`: accept features of OpenAI's API that are otherwise refused.
    """

    host: str = "0.0.0.0"
    port: int = 1234
    workers: int = 1
    keep_alive_interval_ms: int = 10_000
    body_limit_bytes: int = 50 * 1024 * 1024
    disable_metrics: bool = False
    disable_access_log: bool = False
    access_log_format: Literal["text", "json"] = "text"
    access_log_health: bool = False
    disable_request_id_header: bool = False
    drain_timeout_s: float = 30.0
    stall_timeout_s: float = 120.0
    max_connections: int = 4096
    fetch_allow: tuple[str, ...] = ()
    openai_compat: bool = False
    store: StoreSettings = StoreSettings()


class ServingSettings(msgspec.Struct, frozen=True):
    """All settings of `penstock serve`.

    `default_model_id` None: the only loaded model, or the first one.
    """

    models: tuple[ModelSettings, ...]
    default_model_id: str | None
    server: ServerSettings
