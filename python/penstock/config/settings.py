"""The settings of one engine, of the server and of its store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from penstock.config.step_sizes import StepSizes

# The families that `text.tool_parsers` describes; "none": calls are text.
ToolSyntaxName = Literal[
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

# As csrc/cpu/isa.cmake builds them.
CpuLevelName = Literal["auto", "scalar", "neon", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx"]


class LoraSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter that is loaded before the model serves: `alias`, what requests call it; `source`,
    its folder, or its id on the model hub. A `pinned` one stays in the engine's memory whatever
    else is used."""

    alias: str
    source: str
    pinned: bool = False


class LoraSettings(msgspec.Struct, frozen=True):
    """Of the dynamic LoRA runtime of one model.

    `max_adapters`: aliases at the same time. `max_rank`: the largest rank of an adapter.
    `max_bytes`: memory of the adapters that are in use at the same time; others wait in their files
    for their next request.
    """

    max_adapters: int = 16
    max_rank: int = 256
    max_bytes: int = 8 * 1024**3
    preload: tuple[LoraSource, ...] = ()


class EngineSettings(msgspec.Struct, frozen=True):
    """Of one loaded model.

    `dtype`: "auto" computes in the weights' own format (integers, bf16); "f32" dequantizes
    everything. `device`: "cpu", "cuda" or "cuda:N"; "auto" takes the first GPU, if there is one.
    `cache_dtype` "auto": f16, on a GPU bf16, or f32 with dtype f32; "f8e4m3" is of a GPU.
    `max_model_len` None: the model's own, clamped to what the cache holds. `cache_mb`: memory of
    the KV cache in MiB, None: enough for `max_num_seqs` sequences of 1,024 tokens and for one of
    the
    full context; on a GPU what is left of it. `host_cache_mb`: on a GPU, memory of the host in MiB
    for prefixes that its cache has no room for any more. `tensor_parallel`: the model is divided
    among so many GPUs, from `device` on; sizes of memory are then those of each, but for
    `host_cache_mb`. `max_num_seqs` and `max_num_batched_tokens` None: the device decides
    (`config.step_sizes`).
    `threads` None: the cores this process may use. `prefix_cache_n` 0 turns prefix caching off.
    `tool_syntax`: how the model writes calls of functions, None: as its chat template tells.
    `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`: the defaults of requests, None:
    the model's own.
    `speculation`: guess next tokens from a request's own where that pays; answers stay the same.
    `lora` None: the model has no dynamic LoRA runtime.
    `quantize`: at the load, float weights of layers become integers of 8 or 4 bits, embedding and
    head those of 8; or, on a GPU, layers' alone become 8-bit floats ("fp8").
    `without_kernels`: kernels of the CUDA library to leave to Triton, by name, separated by commas;
    "packaged" among them: Triton compiles its kernels here.
    `kernels`: who computes; "native" and "reference" are of the CPU, "triton" does without the CUDA
    library. `deterministic`: on a GPU, no answer depends on what is computed beside it, at the
    price of slower products; on a CPU none ever does. `cpu_level`: the instruction-set level of a
    CPU's native kernels; "auto" measures which is fastest, once on each machine.
    """

    model: str = "smollm2-135m-instruct"
    dtype: Literal["auto", "f32"] = "auto"
    quantize: Literal["int8", "int4", "fp8"] | None = None
    cache_dtype: Literal["auto", "f16", "f32", "f8e4m3"] = "auto"
    device: str = "auto"
    tensor_parallel: int = 1
    max_model_len: int | None = None
    cache_mb: int | None = None
    host_cache_mb: int = 0
    block_size: int = 16
    max_num_seqs: int | None = None
    max_queue: int = 1024
    max_num_batched_tokens: int | None = None
    prefix_cache_n: int = 16
    no_kv_cache: bool = False
    speculation: bool = False
    deterministic: bool = False
    threads: int | None = None
    kernels: Literal["auto", "native", "reference", "triton"] = "auto"
    without_kernels: str = ""
    cpu_level: CpuLevelName = "auto"
    tool_syntax: ToolSyntaxName | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    lora: LoraSettings | None = None

    def step_sizes(self, default: StepSizes) -> StepSizes:
        """The largest step; from `default` comes each size that is not set."""
        return StepSizes(
            default.max_num_seqs if self.max_num_seqs is None else self.max_num_seqs,
            default.max_num_batched_tokens
            if self.max_num_batched_tokens is None
            else self.max_num_batched_tokens,
        )


class ModelSettings(msgspec.Struct, frozen=True):
    """One of the models of a server.

    `id`: what requests call it, "" as its files are named; `aliases`: further names. `on_demand`:
    it is loaded by the first request that names it, and again after it was unloaded; a model
    without is loaded at the start, and stays unloaded when an operator unloads it.
    """

    engine: EngineSettings
    id: str = ""
    aliases: tuple[str, ...] = ()
    on_demand: bool = False


class StoreSettings(msgspec.Struct, frozen=True):
    """Of what outlives a request: responses, files, sessions, skills.

    `url`: of the database, sqlite:///FILE or postgresql://USER@HOST/DATABASE. `blobs` for the
    bodies of files, `skills_dir` for skills: a folder or a URL that fsspec knows. None: under
    PENSTOCK_HOME, see `with_defaults`. `..._expiry_s`: how many seconds things are kept after their
    creation, sessions after their last change; of responses, 0 keeps them until they are deleted.
    `max_...`: beyond so many, or so many bytes, the oldest go; skills stay, and no more are taken.
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
        """The same with every place named; those that were not are under `home`."""
        blobs = self.blobs or str(home / "blobs")
        return msgspec.structs.replace(
            self,
            url=self.url or f"sqlite:///{home / 'penstock.db'}",
            blobs=blobs,
            skills_dir=self.skills_dir or blobs,
        )


class ServerSettings(msgspec.Struct, frozen=True):
    """Of the HTTP side. `workers` API processes share one engine.

    `drain_timeout_s`: how long open answers may go on after SIGTERM. `stall_timeout_s`: how long a
    client may leave its stream unread, or its body unsent. `max_connections`: of one API process.
    `fetch_allow`: addresses and networks, not public, that clients' URLs may lead to.
    `openai_compat`: accept of OpenAI's API what the interface refuses.
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
    """All that `penstock serve` is told. `default_model_id` None: the only model that is loaded,
    else the first."""

    models: tuple[ModelSettings, ...]
    default_model_id: str | None
    server: ServerSettings
