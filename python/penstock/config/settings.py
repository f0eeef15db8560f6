"""Settings of an engine, of the HTTP server and of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from penstock.config.step_sizes import StepSizes

# Names of the parsers in `text.tool_parsers`; "none" leaves tool calls in the text.
ToolCallParserName = Literal[
    "none",
    "cohere",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "functiongemma",
    "gemma3",
    "gemma4",
    "glm",
    "glm4",
    "granite",
    "harmony",
    "hermes",
    "hunyuan",
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

# The instruction sets for which csrc/cpu/isa.cmake builds kernels.
CpuIsaName = Literal["auto", "scalar", "neon", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx"]


class LoraSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter that is loaded before the model serves.

    `alias`: its name in requests.
    `source`: a PEFT folder or a Hugging Face id.
    `pinned`: True if the adapter always stays in the engine's memory.
    """

    alias: str
    source: str
    pinned: bool = False


class LoraSettings(msgspec.Struct, frozen=True):
    """LoRA settings of one model.

    `max_adapters`: the maximum number of loaded aliases.
    `max_rank`: the largest rank of an adapter.
    `max_bytes`: the memory for adapters in use; other adapters are read from their files when a
    request needs them.
    `preload`: the adapters that are loaded at the start.
    `reserved_bytes`: memory that adapters have in any case; for those that belong to the model.
    """

    max_adapters: int = 16
    max_rank: int = 256
    max_bytes: int = 8 * 1024**3
    preload: tuple[LoraSource, ...] = ()
    reserved_bytes: int = 0


class EngineSettings(msgspec.Struct, frozen=True):
    """Settings of one engine.

    Model:
      `model`: a name of the catalogue, a Hugging Face id, a folder or a GGUF file.
      `mmproj`: the GGUF file with the towers of a multimodal model; "off": the model takes text
      only; None: a file beside the model, if there is one.
      `dtype`: "auto" computes in the format of the weights (integers, bfloat16); "f32" dequantizes
      everything to float32.
      `quantization`: quantize float weights while loading. "int8" and "int4" apply to the layers,
      with 8 bits for the embedding and the output projection; "fp8" (GPU) applies to the layers
      only.
      `imatrix`: an importance matrix, in either form of llama.cpp, for `quantization`.
      `tool_call_parser`: format of the model's tool calls; None: detected from the chat template.
      `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`: used for requests that do not
      set them; None: the model's defaults.
      `lora`: None: no LoRA runtime.

    Device and kernels:
      `device`: "cpu", "cuda" or "cuda:N"; "auto" uses the first GPU, if there is one.
      `tensor_parallel_size`: number of consecutive GPUs, starting at `device`, that share the
      model; memory sizes are per GPU, except `cpu_kv_cache_memory_mb`.
      `kernel_backend`: "native" and "reference" run on a CPU; "triton" avoids the CUDA library.
      `disabled_kernels`: comma-separated kernels of the CUDA library that Triton replaces;
      "packaged" compiles Triton's kernels at the start.
      `cpu_isa`: instruction set of the CPU kernels; "auto" measures once per machine which is
      fastest.
      `threads`: number of compute threads; None: all cores that this process may use.
      `deterministic`: on a GPU, make results independent of the other requests in the batch, at a
      lower speed; on a CPU they always are.

    KV cache:
      `max_model_len`: context length in tokens; None: the model's, or less if the cache holds less.
      `kv_cache_memory_mb`: MiB; None: enough for `max_num_seqs` sequences of 1,024 tokens and for
      one full context, or on a GPU all remaining memory.
      `cpu_kv_cache_memory_mb`: MiB of CPU memory for KV blocks evicted from a GPU's prefix cache.
      `state_snapshot_memory_mb`: MiB for snapshots of recurrent states, with which models that have
      recurrent layers reuse equal prompt prefixes; None: 512 MiB, but room for 4 snapshots at least
      and for 4 per sequence at most; 0: none.
      `kv_cache_dtype`: "auto" is f16 on a CPU, bfloat16 on a GPU, and f32 if `dtype` is "f32";
      "int8", with a scale per token and KV head, needs a CPU, and "f8e4m3" needs a GPU.
      `encoder_cache_mb`: MiB for the embeddings of images, audio and video, which later requests
      reuse; requests that need more at a time are refused.
      `block_size`: tokens in a KV block.
      `enable_prefix_caching`: reuse the KV blocks of equal prompt prefixes.
      `no_kv_cache`: recompute the whole context in every step.

    Scheduling:
      `max_num_seqs`, `max_num_batched_tokens`: maximum sequences and tokens in a step; None:
      depends on the device (`config.step_sizes`).
      `max_queue`: maximum number of waiting sequences; further requests are refused with 429.
      `speculative_algorithm`: "ngram" copies draft tokens from the request's own text; "mtp" also
      drafts with the MTP heads of the model. Draft tokens do not change the answers.
      `draft_model`: a smaller model with the same vocabulary, or the assistant of the model, which
      also proposes draft tokens; a path or a Hugging Face id like `model`. None: none.
      `num_draft_tokens`: most draft tokens that MTP heads or the draft model propose for a sequence
      in a step.
      `draft_vocabulary`: on a CPU, MTP heads and draft models choose from this many tokens if their
      time then falls enough; 0: always from all.
    """

    model: str = "smollm2-135m-instruct"
    mmproj: str | None = None
    dtype: Literal["auto", "f32"] = "auto"
    quantization: str | None = None
    imatrix: str | None = None
    kv_cache_dtype: Literal["auto", "f16", "f32", "int8", "f8e4m3"] = "auto"
    device: str = "auto"
    tensor_parallel_size: int = 1
    max_model_len: int | None = None
    kv_cache_memory_mb: int | None = None
    cpu_kv_cache_memory_mb: int = 0
    state_snapshot_memory_mb: int | None = None
    encoder_cache_mb: int = 512
    block_size: int = 16
    max_num_seqs: int | None = None
    max_queue: int = 1024
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    no_kv_cache: bool = False
    speculative_algorithm: Literal["none", "ngram", "mtp"] = "none"
    draft_model: str | None = None
    num_draft_tokens: int = 8
    draft_vocabulary: int = 32768
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

    @property
    def speculates(self) -> bool:
        """Whether steps may have draft tokens. Every source of them includes n-gram lookup."""
        wanted = self.speculative_algorithm != "none" or self.draft_model is not None
        return wanted and not self.no_kv_cache

    def step_sizes(self, default: StepSizes) -> StepSizes:
        """Return the limits on the size of a step; limits that are not set are taken from
        `default`."""
        return StepSizes(
            default.max_num_seqs if self.max_num_seqs is None else self.max_num_seqs,
            default.max_num_batched_tokens
            if self.max_num_batched_tokens is None
            else self.max_num_batched_tokens,
        )


class ModelSettings(msgspec.Struct, frozen=True):
    """Settings of one model of a server.

    `engine`: the settings of its engine.
    `id`: its name in requests; "": the name of its files.
    `aliases`: additional names in requests.
    `on_demand`: True: the first request for the model loads it, also after an unload. False: the
    model is loaded at the start, and stays unloaded after an operator unloads it.
    """

    engine: EngineSettings
    id: str = ""
    aliases: tuple[str, ...] = ()
    on_demand: bool = False


class MediaSettings(msgspec.Struct, frozen=True):
    """Settings of the images, audio and video in requests.

    - `max_image_pixels`: pixels of an image, and of a frame of a video.
    - `max_video_frames`: frames that are sampled from a video; a model may ask for fewer.
    - `max_media_duration_s`: seconds of audio and video.
    - `max_media_bytes`: size of an encoded item.
    - `max_media_items`: items in a request.
    - `media_processes`: decoding processes per API process and model. They start at the first use.
    """

    max_image_pixels: int = 64_000_000
    max_video_frames: int = 32
    max_media_duration_s: float = 3600.0
    max_media_bytes: int = 64 * 1024**2
    max_media_items: int = 64
    media_processes: int = 2


class StoreSettings(msgspec.Struct, frozen=True):
    """Settings of the store of responses, files, sessions, skills and chats.

    `url`: the database, sqlite:///FILE or postgresql://USER@HOST/DATABASE.
    `blobs`: folder or fsspec URL for the contents of files.
    `skills_dir`: folder or fsspec URL for skills.
    `url`, `blobs` and `skills_dir` may be None: they are then set to locations under PENSTOCK_HOME
    (`with_defaults`).
    `response_expiry_s`: seconds from the creation of a response to its deletion; 0: never deleted.
    `session_expiry_s`: seconds from the last change of a session to its deletion.
    `file_expiry_s`: seconds from the creation of a file to its deletion.
    `max_responses_bytes`, `max_sessions`, `max_sessions_bytes`, `max_files`, `max_files_bytes`:
    beyond this number or total size, the oldest are deleted.
    `max_skills_bytes`, `max_chats_bytes`: skills and chats are never deleted automatically; beyond
    this size, uploads and new messages are refused.
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
    max_chats_bytes: int = 16 * 1024**3

    def with_defaults(self, home: Path) -> StoreSettings:
        """Return the settings with all locations set. Missing locations are set to paths under
        `home`."""
        blobs = self.blobs or str(home / "blobs")
        return msgspec.structs.replace(
            self,
            url=self.url or f"sqlite:///{home / 'penstock.db'}",
            blobs=blobs,
            skills_dir=self.skills_dir or blobs,
        )


class SandboxSettings(msgspec.Struct, frozen=True):
    """Settings of the sandbox in which tools run.

    - `mode`: "auto" applies the layers that this machine supports and warns about missing ones;
      "on" refuses to start if a layer is missing; "off" applies none.
    - `profile`: "restricted", or "developer" with the toolchain folders of the host and full
      network by default.
    - `network`: "none", "loopback" (the sandbox's own) or "full" (the host's); None: "loopback"
      for the restricted profile, "full" for the developer profile.
    - `max_memory_mb`: MiB per session, also the size of the session's files.
    - `max_cpu_secs`: CPU seconds of each process of a session.
    - `max_procs`: processes and threads per session.
    """

    mode: Literal["auto", "on", "off"] = "auto"
    profile: Literal["restricted", "developer"] = "restricted"
    network: Literal["none", "loopback", "full"] | None = None
    max_memory_mb: int = 2048
    max_cpu_secs: int = 600
    max_procs: int = 64


def _repr_without(settings: msgspec.Struct, secret: str) -> str:
    """Return the repr of settings with the value of the field `secret` hidden, for logs."""
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    if values[secret] is not None:
        values[secret] = "..."
    inner = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"{type(settings).__name__}({inner})"


class SearchSettings(msgspec.Struct, frozen=True):
    """Settings of web search.

    - `engine`: the search engine: "ddgs", "searxng" or "brave".
    - `url`: base URL of the SearXNG instance.
    - `api_key`: the key of the engine's API; `repr` does not show it.
    """

    engine: Literal["ddgs", "searxng", "brave"] = "ddgs"
    url: str | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return _repr_without(self, "api_key")


class AgentSettings(msgspec.Struct, frozen=True):
    """Settings of the tools that the server runs.

    - `enable_search`, `enable_code_execution`, `enable_shell`: tools that requests may ask for.
    - `agent_permission`: "auto" runs calls, "ask" waits for an approval, "deny" refuses them. A
      request can only make this stricter.
    - `max_tool_rounds`: rounds of tool calls per request; None: 256.
    - `code_exec_timeout`, `shell_timeout`: seconds per call.
    - `code_exec_python`: the Python interpreter of the Python tool.
    - `shell_path`: the shell of the shell tool.
    - `code_exec_workdir`, `shell_workdir`: host folder for the files of sessions, one subfolder per
      session; None: in memory.
    - `session_idle_s`: seconds after the last call after which a session's processes end.
    - `max_containers`: sessions with running processes per API process; the longest idle one ends.
    - `tool_dispatch_url`: executes the functions of requests: POST `{"name", "arguments"}`.
    - `tool_dispatch_secret`: key of the HMAC-SHA256 signature of dispatched calls; `repr` does not
      show it.
    - `tool_dispatch_timeout`: seconds per dispatched call.
    - `mcp_config`: path of the configuration of MCP servers.
    - `mcp_port`: port at which this server is itself an MCP server.
    """

    enable_search: bool = False
    enable_code_execution: bool = False
    enable_shell: bool = False
    agent_permission: Literal["auto", "ask", "deny"] = "auto"
    max_tool_rounds: int | None = None
    code_exec_timeout: int = 60
    code_exec_python: str = "python3"
    code_exec_workdir: str | None = None
    shell_timeout: int = 600
    shell_path: str = "/bin/sh"
    shell_workdir: str | None = None
    session_idle_s: int = 3600
    max_containers: int = 256
    tool_dispatch_url: str | None = None
    tool_dispatch_secret: str | None = None
    tool_dispatch_timeout: int = 60
    mcp_config: str | None = None
    mcp_port: int | None = None
    search: SearchSettings = SearchSettings()
    sandbox: SandboxSettings = SandboxSettings()

    @property
    def needs_sandbox(self) -> bool:
        """Whether any enabled tool runs in the sandbox."""
        return self.enable_code_execution or self.enable_shell

    def __repr__(self) -> str:
        return _repr_without(self, "tool_dispatch_secret")


class ServerSettings(msgspec.Struct, frozen=True):
    """Settings of the HTTP server.

    `workers`: number of API processes; all use the same engines.
    `keep_alive_interval_ms`: time between two keep-alives of a stream.
    `body_limit_bytes`: maximum size of a request body.
    `access_log_health`: also log health checks and similar requests.
    `drain_timeout_s`: time for open requests to finish after SIGTERM.
    `stall_timeout_s`: time after which a client that neither reads its stream nor sends its body is
    disconnected.
    `max_connections`: maximum number of connections per API process.
    `fetch_allow`: private addresses and networks from which URLs in requests may be fetched.
    `enable_pull`: the web page may download any model of the hub, not only the catalogue's.
    `openai_compat`: accept features of OpenAI's API that are otherwise refused.
    `no_ui`: serve no web page.
    `media`: the images, audio and video in requests.
    `agent`: the tools that the server runs.
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
    enable_pull: bool = False
    openai_compat: bool = False
    no_ui: bool = False
    media: MediaSettings = MediaSettings()
    store: StoreSettings = StoreSettings()
    agent: AgentSettings = AgentSettings()


class ServingSettings(msgspec.Struct, frozen=True):
    """All settings of `penstock serve`.

    `models`: the models to serve.
    `default_model_id`: the model of requests for "default"; None: the loaded model if exactly one
    is loaded, else the first model.
    `server`: the settings of the HTTP server.
    """

    models: tuple[ModelSettings, ...]
    default_model_id: str | None
    server: ServerSettings
