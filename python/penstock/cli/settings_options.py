"""The options that set a field of EngineSettings, ServerSettings or StoreSettings, and those of the
LoRA runtime, as one table: of the command line, of its help, and of docs/configuration.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.config import (
    CPU_STEP_SIZES,
    GPU_STEP_SIZES,
    EngineSettings,
    LoraSettings,
    ServerSettings,
    StoreSettings,
)
from penstock.config.settings import CpuLevelName, ToolSyntaxName

MODEL_PANEL: Final = "Model"
SAMPLING_PANEL: Final = "Sampling, of requests that say nothing"
ENGINE_PANEL: Final = "Engine"
LORA_PANEL: Final = "Adapters"
SERVER_PANEL: Final = "Server"
STORE_PANEL: Final = "Store"
LOG_PANEL: Final = "Logs and metrics"


@dataclass(frozen=True)
class SettingOption:
    """How the command line spells one field. `kind`: int, float, str, bool, a list of strings or a
    Literal. Of `flags` one is shown, and an alias is mentioned in the help."""

    field: str
    flags: tuple[str, ...]
    kind: Any
    help: str
    panel: str
    default: str | None = None  # shown where the field's own default would not tell
    metavar: str | None = None  # shown for the value where its kind would not tell


def _by_device(size: Literal["max_num_seqs", "max_num_batched_tokens"]) -> str:
    """The default of a step size."""
    on_cpu, on_gpu = getattr(CPU_STEP_SIZES, size), getattr(GPU_STEP_SIZES[0], size)
    return f"{on_cpu}; on a GPU {on_gpu}, or less if memory is short"


ENGINE_OPTIONS: Final = (
    SettingOption(
        "dtype",
        ("--dtype",),
        Literal["auto", "f32"],
        "Arithmetic: the weights' own format, or 32-bit floats.",
        MODEL_PANEL,
    ),
    SettingOption(
        "quantize",
        ("--quantize",),
        Literal["int8", "int4", "fp8"],
        "Round float weights at the load; fp8 is of a GPU.",
        MODEL_PANEL,
        "as they are stored",
    ),
    SettingOption(
        "tool_syntax",
        ("--tool-syntax",),
        ToolSyntaxName,
        "How the model writes calls of functions.",
        MODEL_PANEL,
        "as its chat template tells",
        "FAMILY",
    ),
    SettingOption(
        "temperature",
        ("--temperature",),
        float,
        "0 (always the likeliest token) to 2.",
        SAMPLING_PANEL,
        "the model's",
        "X",
    ),
    SettingOption(
        "top_k",
        ("--top-k",),
        int,
        "Draw from the K likeliest tokens; 0: from all.",
        SAMPLING_PANEL,
        "the model's",
        "K",
    ),
    SettingOption(
        "top_p",
        ("--top-p",),
        float,
        "Draw from the likeliest tokens up to this probability.",
        SAMPLING_PANEL,
        "the model's",
        "P",
    ),
    SettingOption(
        "min_p",
        ("--min-p",),
        float,
        "Draw from tokens of at least this part of the best one's probability.",
        SAMPLING_PANEL,
        "the model's",
        "P",
    ),
    SettingOption(
        "repetition_penalty",
        ("--repetition-penalty",),
        float,
        "Divides the logits of tokens that are in prompt or answer.",
        SAMPLING_PANEL,
        "the model's",
        "X",
    ),
    SettingOption(
        "max_model_len",
        ("--context", "--pa-context-len"),
        int,
        "Longest context, in tokens.",
        ENGINE_PANEL,
        "the model's, if it fits",
    ),
    SettingOption(
        "cache_mb",
        ("--cache-mb", "--pa-memory-mb"),
        int,
        "Memory of the KV cache, in MiB.",
        ENGINE_PANEL,
        "as --max-seqs and --context need",
    ),
    SettingOption(
        "host_cache_mb",
        ("--host-cache-mb",),
        int,
        "Memory of the host for prefixes that a GPU's KV cache has no room for, in MiB.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "cache_dtype",
        ("--cache-dtype", "--pa-cache-type"),
        Literal["auto", "f16", "f32", "f8e4m3"],
        "Format of the KV cache: auto, f16, f32, or on a GPU f8e4m3.",
        ENGINE_PANEL,
        "f16, on a GPU bf16; f32 with --dtype f32",
        "FORMAT",
    ),
    SettingOption(
        "device",
        ("--device",),
        str,
        "Who computes: cpu, cuda or cuda:N.",
        ENGINE_PANEL,
        "the first GPU, if there is one",
        "DEVICE",
    ),
    SettingOption(
        "tensor_parallel",
        ("--tensor-parallel",),
        int,
        "Divide the model among so many GPUs, from --device on.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "block_size",
        ("--block-tokens", "--pa-block-size"),
        int,
        "Tokens of one block of the cache.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "max_num_seqs",
        ("--max-seqs",),
        int,
        "Sequences computed at the same time.",
        ENGINE_PANEL,
        _by_device("max_num_seqs"),
    ),
    SettingOption(
        "max_queue",
        ("--max-queue",),
        int,
        "Sequences that may wait; beyond, requests get 429.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "max_num_batched_tokens",
        ("--token-budget", "--max-num-batched-tokens"),
        int,
        "Tokens computed in one step.",
        ENGINE_PANEL,
        _by_device("max_num_batched_tokens"),
    ),
    SettingOption(
        "prefix_cache_n",
        ("--prefix-cache-n",),
        int,
        "0 turns the prefix cache off; otherwise it is on.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "no_kv_cache", ("--no-kv-cache",), bool, "Compute everything anew each step.", ENGINE_PANEL
    ),
    SettingOption(
        "speculation", ("--speculation",), bool, "Guess next tokens where it pays.", ENGINE_PANEL
    ),
    SettingOption(
        "deterministic",
        ("--deterministic",),
        bool,
        "On a GPU, no answer depends on its neighbours.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "threads", ("--threads",), int, "Threads that compute.", ENGINE_PANEL, "one a core"
    ),
    SettingOption(
        "kernels",
        ("--kernels",),
        Literal["auto", "native", "reference", "triton"],
        "Whose kernels: auto, native, triton (on a GPU), or reference, which is slow and needs"
        " torch.",
        ENGINE_PANEL,
        metavar="KERNELS",
    ),
    SettingOption(
        "without_kernels",
        ("--without-kernels",),
        str,
        "On a GPU, kernels of the CUDA library to leave to Triton, or 'packaged': comma-separated.",
        ENGINE_PANEL,
        "none",
        "NAMES",
    ),
    SettingOption(
        "cpu_level",
        ("--cpu-level",),
        CpuLevelName,
        "Instruction set of a CPU's kernels, such as avx2; auto measures which is fastest.",
        ENGINE_PANEL,
        metavar="LEVEL",
    ),
)
LORA_OPTIONS: Final = (
    SettingOption(
        "enable_lora",
        ("--enable-lora",),
        bool,
        "Serve LoRA adapters; --lora does it, too.",
        LORA_PANEL,
        "off",
    ),
    SettingOption(
        "lora",
        ("--lora", "--lora-modules"),
        list[str],
        "An adapter to load at the start: a PEFT folder, or a hub id (owner/name). Repeatable.",
        LORA_PANEL,
        "none",
        "ALIAS=SOURCE",
    ),
    SettingOption(
        "lora_max_adapters",
        ("--lora-max-adapters",),
        int,
        "Adapters loaded at the same time.",
        LORA_PANEL,
        str(LoraSettings().max_adapters),
    ),
    SettingOption(
        "lora_max_rank",
        ("--lora-max-rank", "--max-lora-rank"),
        int,
        "Largest rank of an adapter.",
        LORA_PANEL,
        str(LoraSettings().max_rank),
    ),
    SettingOption(
        "lora_max_bytes",
        ("--lora-max-bytes",),
        str,
        "Memory of the adapters in use, such as 512MiB.",
        LORA_PANEL,
        "8GiB",
        "BYTES",
    ),
)
MODEL_OPTIONS: Final = ENGINE_OPTIONS + LORA_OPTIONS
SERVER_OPTIONS: Final = (
    SettingOption(
        "host",
        ("--host",),
        str,
        "Address to listen on; 127.0.0.1: only for this machine.",
        SERVER_PANEL,
    ),
    SettingOption("port", ("-p", "--port"), int, "Port; 0 takes a free one.", SERVER_PANEL),
    SettingOption(
        "workers", ("--workers",), int, "API processes; they share one engine.", SERVER_PANEL
    ),
    SettingOption(
        "drain_timeout_s",
        ("--drain-timeout",),
        float,
        "Seconds that open answers may go on after SIGTERM.",
        SERVER_PANEL,
    ),
    SettingOption(
        "stall_timeout_s",
        ("--stall-timeout",),
        float,
        "Seconds that a client may leave its stream unread, or its body unsent.",
        SERVER_PANEL,
    ),
    SettingOption(
        "keep_alive_interval_ms",
        ("--keep-alive-interval-ms",),
        int,
        "Pause after which an idle stream gets a comment.",
        SERVER_PANEL,
        "KEEP_ALIVE_INTERVAL, else 10000",
    ),
    SettingOption(
        "body_limit_bytes",
        ("--body-limit-bytes",),
        int,
        "Largest request body.",
        SERVER_PANEL,
        "52428800, which is 50 MiB",
    ),
    SettingOption(
        "max_connections",
        ("--max-connections",),
        int,
        "Connections of one API process.",
        SERVER_PANEL,
    ),
    SettingOption(
        "fetch_allow",
        ("--fetch-allow",),
        list[str],
        "Network that clients' URLs may lead to though it is not public, such as 10.1.0.0/16."
        " Repeatable.",
        SERVER_PANEL,
        "none",
        "NETWORK",
    ),
    SettingOption(
        "openai_compat",
        ("--openai-compat",),
        bool,
        "Accept of OpenAI's API what is refused otherwise: the response format json_object, and"
        " parallel_tool_calls false on responses.",
        SERVER_PANEL,
    ),
    SettingOption(
        "disable_request_id_header",
        ("--disable-request-id-header",),
        bool,
        "Send no x-request-id.",
        SERVER_PANEL,
    ),
    SettingOption(
        "disable_access_log", ("--disable-access-log",), bool, "No access log.", LOG_PANEL
    ),
    SettingOption(
        "access_log_format",
        ("--access-log-format",),
        Literal["text", "json"],
        "Form of the access log.",
        LOG_PANEL,
    ),
    SettingOption(
        "access_log_health",
        ("--access-log-health",),
        bool,
        "Log health and metrics requests too.",
        LOG_PANEL,
    ),
    SettingOption("disable_metrics", ("--disable-metrics",), bool, "No /metrics.", LOG_PANEL),
)
STORE_OPTIONS: Final = (
    SettingOption(
        "url",
        ("--store",),
        str,
        "Database of responses, files and sessions: sqlite:///FILE or postgresql://...",
        STORE_PANEL,
        "penstock.db in PENSTOCK_HOME",
    ),
    SettingOption(
        "blobs",
        ("--blobs",),
        str,
        "Folder or fsspec URL for the bodies of files.",
        STORE_PANEL,
        "blobs in PENSTOCK_HOME",
    ),
    SettingOption(
        "skills_dir",
        ("--skills-dir",),
        str,
        "Folder or fsspec URL for uploaded skills.",
        STORE_PANEL,
        "as --blobs",
    ),
    SettingOption(
        "response_expiry_s",
        ("--response-expiry",),
        int,
        "Seconds that a response is kept; 0: until it is deleted.",
        STORE_PANEL,
        "2592000, which is 30 days",
    ),
    SettingOption(
        "max_responses_bytes",
        ("--max-responses-bytes",),
        int,
        "Bytes of responses kept; beyond them the oldest go.",
        STORE_PANEL,
    ),
    SettingOption(
        "session_expiry_s",
        ("--session-expiry",),
        int,
        "Seconds that an unused session is kept.",
        STORE_PANEL,
    ),
    SettingOption("max_sessions", ("--max-sessions",), int, "Sessions kept.", STORE_PANEL),
    SettingOption(
        "max_sessions_bytes",
        ("--max-sessions-bytes",),
        int,
        "Bytes of sessions kept; beyond them the oldest go.",
        STORE_PANEL,
    ),
    SettingOption(
        "file_expiry_s", ("--file-expiry",), int, "Seconds that a file is kept.", STORE_PANEL
    ),
    SettingOption("max_files", ("--max-files",), int, "Files kept.", STORE_PANEL),
    SettingOption(
        "max_files_bytes",
        ("--max-files-bytes",),
        int,
        "Bytes of files kept; beyond them the oldest go.",
        STORE_PANEL,
    ),
    SettingOption(
        "max_skills_bytes",
        ("--max-skills-bytes",),
        int,
        "Bytes of skills kept; beyond them no more are taken.",
        STORE_PANEL,
    ),
)
SERVE_OPTIONS: Final = SERVER_OPTIONS + STORE_OPTIONS


def negative_flag(option: SettingOption) -> str | None:
    """The flag that sets a boolean option to what its own does not, whatever a file says; None of
    the others."""
    if option.kind is not bool:
        return None
    name = option.flags[0].removeprefix("--")
    for prefix, other in (("no-", ""), ("disable-", "enable-"), ("enable-", "disable-")):
        if name.startswith(prefix):
            return f"--{other}{name.removeprefix(prefix)}"
    return f"--no-{name}"


def default_text(option: SettingOption) -> str:
    """What counts where neither an option nor a file says anything, as the help shows it."""
    return option.default or str(getattr(_owner(option)(), option.field))


def _owner(option: SettingOption) -> type[EngineSettings | ServerSettings | StoreSettings]:
    if option in STORE_OPTIONS:
        return StoreSettings
    return ServerSettings if option in SERVER_OPTIONS else EngineSettings
