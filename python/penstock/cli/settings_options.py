"""The table of command-line options that set fields of the settings. The options of the command
line, its help and docs/configuration.md are generated from it.

An option's flag is the name of its field, or the name that vLLM and llama.cpp use. Its further
flags are hidden aliases: former names, and the names that mistral.rs uses.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.cli.agent_setting_options import AGENT_OPTIONS, SANDBOX_OPTIONS, SEARCH_OPTIONS
from penstock.cli.media_setting_options import MEDIA_OPTIONS
from penstock.cli.setting_option import SettingOption, in_panel
from penstock.cli.store_setting_options import STORE_OPTIONS
from penstock.config import (
    CPU_STEP_SIZES,
    GPU_STEP_SIZES,
    AgentSettings,
    EngineSettings,
    LoraSettings,
    MediaSettings,
    SandboxSettings,
    SearchSettings,
    ServerSettings,
    StoreSettings,
)
from penstock.config.settings import CpuIsaName, ToolCallParserName
from penstock.config.weight_types import KNOWN

MODEL_PANEL: Final = "Model"
SAMPLING_PANEL: Final = "Default sampling parameters"
ENGINE_PANEL: Final = "Engine"
LORA_PANEL: Final = "LoRA adapters"
SERVER_PANEL: Final = "Server"
LOG_PANEL: Final = "Logs and metrics"

MODEL_DEFAULT: Final = "the model's own"


def _by_device(size: Literal["max_num_seqs", "max_num_batched_tokens"]) -> str:
    """Return the text that gives the defaults of a step limit on a CPU and on a GPU."""
    on_cpu, on_gpu = getattr(CPU_STEP_SIZES, size), getattr(GPU_STEP_SIZES[0], size)
    return f"{on_cpu}; on a GPU {on_gpu}, or less if memory is short"


ENGINE_OPTIONS: Final = (
    *in_panel(
        MODEL_PANEL,
        SettingOption(
            "mmproj",
            ("--mmproj",),
            str,
            "GGUF file with the image and audio encoders of a GGUF model; off: text only.",
            "a *mmproj*.gguf file beside the model",
            "FILE|off",
        ),
        SettingOption(
            "dtype",
            ("--dtype",),
            Literal["auto", "f32", "float32"],
            "Data type of the computation: auto keeps the checkpoint's format, float32 converts"
            " all weights.",
            metavar="auto|float32",
        ),
        SettingOption(
            "quantization",
            ("-q", "--quantization", "--quantize"),
            str,
            "Quantize the float weights of layers while loading: int8, int4, Q4_K, Q8_0 and so on;"
            " fp8 needs a GPU.",
            "the checkpoint's format",
            "TYPE",
            completions=KNOWN,
        ),
        SettingOption(
            "imatrix",
            ("--imatrix",),
            str,
            "Importance matrix for --quantization: a file of llama-imatrix, GGUF or older.",
            "all columns count the same",
            "FILE",
        ),
        SettingOption(
            "tool_call_parser",
            ("--tool-call-parser", "--tool-syntax"),
            ToolCallParserName,
            "Format in which the model writes tool calls.",
            "detected from the chat template",
            "NAME",
        ),
    ),
    *in_panel(
        SAMPLING_PANEL,
        SettingOption(
            "temperature",
            ("--temperature", "--temp"),
            float,
            "Temperature, 0 (greedy) to 2.",
            MODEL_DEFAULT,
            "X",
        ),
        SettingOption(
            "top_k",
            ("--top-k",),
            int,
            "Sample from the K most likely tokens; 0 means all.",
            MODEL_DEFAULT,
            "K",
        ),
        SettingOption(
            "top_p",
            ("--top-p",),
            float,
            "Sample from the most likely tokens whose probabilities add up to P.",
            MODEL_DEFAULT,
            "P",
        ),
        SettingOption(
            "min_p",
            ("--min-p",),
            float,
            "Drop tokens less likely than P times the most likely token.",
            MODEL_DEFAULT,
            "P",
        ),
        SettingOption(
            "repetition_penalty",
            ("--repetition-penalty", "--repeat-penalty"),
            float,
            "Divide the logits of tokens that occur in the prompt or the answer.",
            MODEL_DEFAULT,
            "X",
        ),
    ),
    *in_panel(
        ENGINE_PANEL,
        SettingOption(
            "max_model_len",
            ("--max-model-len", "--ctx-size", "--context", "--pa-context-len"),
            int,
            "Maximum context length in tokens, prompt and answer together.",
            "the model's, if the KV cache can hold it",
        ),
        SettingOption(
            "kv_cache_memory_mb",
            ("--kv-cache-memory", "--cache-mb", "--pa-memory-mb"),
            str,
            "Memory of the KV cache, such as 8GiB; a plain number is in MiB.",
            "as --max-num-seqs and --max-model-len need",
            "SIZE",
        ),
        SettingOption(
            "cpu_kv_cache_memory_mb",
            ("--cpu-kv-cache-memory", "--host-cache-mb"),
            str,
            "CPU memory for KV blocks evicted from a GPU's prefix cache, such as 16GiB.",
            "0, which is off",
            "SIZE",
        ),
        SettingOption(
            "state_snapshot_memory_mb",
            ("--state-snapshot-memory",),
            str,
            "Memory for snapshots of recurrent states, with which models that have recurrent layers"
            " reuse equal prompt prefixes, such as 1GiB; 0 is off.",
            "512MiB, but 4 snapshots at least and 4 per sequence at most",
            "SIZE",
        ),
        SettingOption(
            "encoder_cache_mb",
            ("--encoder-cache-memory",),
            str,
            "Memory for the embeddings of images, audio and video, such as 1GiB; a plain number is"
            " in MiB.",
            metavar="SIZE",
        ),
        SettingOption(
            "kv_cache_dtype",
            ("--kv-cache-dtype", "--cache-dtype", "--pa-cache-type"),
            Literal[
                "auto",
                "f16",
                "f32",
                "int8",
                "f8e4m3",
                "float16",
                "float32",
                "q8_0",
                "fp8",
                "fp8_e4m3",
            ],
            "Data type of the KV cache: auto, float16, float32, int8 on a CPU, or fp8 on a GPU.",
            "float16; on a GPU bfloat16; float32 with --dtype float32",
            "TYPE",
        ),
        SettingOption(
            "device",
            ("--device",),
            str,
            "Device to run on: cpu, cuda or cuda:N.",
            "the first GPU, if there is one",
            "DEVICE",
        ),
        SettingOption(
            "tensor_parallel_size",
            ("-tp", "--tensor-parallel-size", "--tensor-parallel"),
            int,
            "Split the model among N GPUs, from --device on.",
        ),
        SettingOption(
            "block_size",
            ("--block-size", "--block-tokens", "--pa-block-size"),
            int,
            "Tokens in a KV block.",
        ),
        SettingOption(
            "max_num_seqs",
            ("--max-num-seqs", "--max-seqs"),
            int,
            "Maximum number of sequences in a step.",
            _by_device("max_num_seqs"),
        ),
        SettingOption(
            "max_queue",
            ("--max-queue", "--max-queued-requests"),
            int,
            "Maximum number of waiting sequences; beyond it requests get 429.",
        ),
        SettingOption(
            "max_num_batched_tokens",
            ("--max-num-batched-tokens", "--token-budget"),
            int,
            "Maximum number of tokens computed in a step.",
            _by_device("max_num_batched_tokens"),
        ),
        SettingOption(
            "enable_prefix_caching",
            ("--enable-prefix-caching",),
            bool,
            "Reuse the KV blocks of prompt prefixes that were computed before. Default: on.",
        ),
        SettingOption(
            "no_kv_cache",
            ("--no-kv-cache",),
            bool,
            "Recompute the whole context in every step, for debugging.",
        ),
        SettingOption(
            "speculative_algorithm",
            ("--speculative-algorithm",),
            Literal["none", "ngram", "mtp"],
            "Speculative decoding: ngram copies draft tokens from earlier text of the request; mtp"
            " also drafts with the model's MTP heads.",
        ),
        SettingOption(
            "draft_model",
            ("--draft-model", "--model-draft", "--speculative-draft-model-path"),
            str,
            "Smaller model with the same vocabulary, or Gemma 4 assistant, that proposes draft"
            " tokens: a path or an id.",
            "none",
            "PATH",
        ),
        SettingOption(
            "num_draft_tokens",
            ("--num-draft-tokens", "--num-speculative-tokens", "--draft-max"),
            int,
            "Most draft tokens of the draft model or the MTP heads per sequence and step.",
        ),
        SettingOption(
            "draft_vocabulary",
            ("--draft-vocabulary",),
            int,
            "Tokens that draft models and MTP heads on a CPU choose from if that saves time;"
            " 0: all.",
        ),
        SettingOption(
            "deterministic",
            ("--deterministic", "--enable-deterministic-inference"),
            bool,
            "Batch-invariant results on a GPU, at a lower speed; a CPU's always are.",
        ),
        SettingOption(
            "threads", ("--threads",), int, "Compute threads of the CPU.", "one per core"
        ),
        SettingOption(
            "kernel_backend",
            ("--kernel-backend", "--kernels"),
            Literal["auto", "native", "reference", "triton"],
            "Kernels: auto, native (C++ on a CPU), triton (GPU), or reference (PyTorch, slow).",
            metavar="NAME",
        ),
        SettingOption(
            "disabled_kernels",
            ("--disable-kernels", "--without-kernels"),
            str,
            "Kernels of the CUDA library that Triton replaces, comma-separated; 'packaged':"
            " compile Triton's kernels at the start.",
            "none",
            "NAMES",
        ),
        SettingOption(
            "cpu_isa",
            ("--cpu-isa", "--cpu-level"),
            CpuIsaName,
            "Instruction set of the CPU kernels, such as avx2; auto measures the fastest.",
            metavar="ISA",
        ),
    ),
)
# Options of the former keys (FORMER_KEYS), which the settings file and the command line still
# accept.
FORMER_OPTIONS: Final = (
    SettingOption("prefix_cache_n", ("--prefix-cache-n",), int, ""),
    SettingOption("speculation", ("--speculation",), bool, ""),
)
LORA_OPTIONS: Final = in_panel(
    LORA_PANEL,
    SettingOption(
        "enable_lora",
        ("--enable-lora",),
        bool,
        "Serve LoRA adapters; --lora implies it.",
        "off",
    ),
    SettingOption(
        "lora",
        ("--lora", "--lora-modules"),
        list[str],
        "Adapter to load at the start: a PEFT folder or a Hugging Face id. Repeatable.",
        "none",
        "ALIAS=SOURCE",
    ),
    SettingOption(
        "lora_max_adapters",
        ("--lora-max-adapters", "--max-loras"),
        int,
        "Maximum number of loaded adapters.",
        str(LoraSettings().max_adapters),
    ),
    SettingOption(
        "lora_max_rank",
        ("--max-lora-rank", "--lora-max-rank"),
        int,
        "Maximum rank of an adapter.",
        str(LoraSettings().max_rank),
    ),
    SettingOption(
        "lora_max_bytes",
        ("--lora-max-bytes",),
        str,
        "Memory of the adapters in use, such as 512MiB.",
        "8GiB",
        "SIZE",
    ),
)
MODEL_OPTIONS: Final = ENGINE_OPTIONS + LORA_OPTIONS
SERVER_OPTIONS: Final = (
    *in_panel(
        SERVER_PANEL,
        SettingOption(
            "host", ("--host",), str, "Address to listen on; 127.0.0.1 accepts only local clients."
        ),
        SettingOption("port", ("-p", "--port"), int, "Port; 0 picks a free one."),
        SettingOption(
            "workers",
            ("--workers", "--api-server-count"),
            int,
            "Number of API processes; all use the same engine.",
        ),
        SettingOption(
            "drain_timeout_s",
            ("--drain-timeout",),
            float,
            "Seconds that open requests may take to finish after SIGTERM.",
        ),
        SettingOption(
            "stall_timeout_s",
            ("--stall-timeout",),
            float,
            "Seconds after which a client that stops reading or sending is disconnected.",
        ),
        SettingOption(
            "keep_alive_interval_ms",
            ("--keep-alive-interval-ms",),
            int,
            "Milliseconds between comments on an idle stream.",
            "KEEP_ALIVE_INTERVAL, else 10000",
        ),
        SettingOption(
            "body_limit_bytes",
            ("--body-limit-bytes",),
            int,
            "Maximum size of a request body.",
            "52428800, which is 50 MiB",
        ),
        SettingOption(
            "max_connections",
            ("--max-connections",),
            int,
            "Maximum number of open connections of an API process.",
        ),
        SettingOption(
            "fetch_allow",
            ("--fetch-allow",),
            list[str],
            "Private network from which URLs in requests may be fetched, such as 10.1.0.0/16."
            " Repeatable.",
            "none",
            "NETWORK",
        ),
        SettingOption(
            "openai_compat",
            ("--openai-compat",),
            bool,
            "Accept what OpenAI accepts and the interface otherwise refuses: response_format"
            " json_object, and parallel_tool_calls false on responses.",
        ),
        SettingOption("no_ui", ("--no-ui",), bool, "Serve no web page at /ui."),
        SettingOption(
            "disable_request_id_header",
            ("--disable-request-id-header",),
            bool,
            "Send no x-request-id header.",
        ),
    ),
    *in_panel(
        LOG_PANEL,
        SettingOption(
            "disable_access_log",
            ("--disable-access-log", "--disable-uvicorn-access-log"),
            bool,
            "Write no access log.",
        ),
        SettingOption(
            "access_log_format",
            ("--access-log-format",),
            Literal["text", "json"],
            "Format of the access log.",
        ),
        SettingOption(
            "access_log_health",
            ("--access-log-health",),
            bool,
            "Log requests to /health, /metrics, /docs and /ui too.",
        ),
        SettingOption("disable_metrics", ("--disable-metrics",), bool, "Serve no /metrics."),
        SettingOption(
            "enable_pull",
            ("--enable-pull",),
            bool,
            "Let the web page download any model of the hub, not only the catalogue's.",
        ),
    ),
)
SERVE_OPTIONS: Final = (
    *SERVER_OPTIONS,
    *STORE_OPTIONS,
    *MEDIA_OPTIONS,
    *AGENT_OPTIONS,
    *SEARCH_OPTIONS,
    *SANDBOX_OPTIONS,
)

DEFAULTS: Final[tuple[tuple[tuple[SettingOption, ...], msgspec.Struct], ...]] = (
    (ENGINE_OPTIONS, EngineSettings()),
    (SERVER_OPTIONS, ServerSettings()),
    (STORE_OPTIONS, StoreSettings()),
    (MEDIA_OPTIONS, MediaSettings()),
    (AGENT_OPTIONS, AgentSettings()),
    (SEARCH_OPTIONS, SearchSettings()),
    (SANDBOX_OPTIONS, SandboxSettings()),
)


def default_text(option: SettingOption) -> str:
    """Return the default of an option as text for the help."""
    if option.default:
        return option.default
    (settings,) = (defaults for options, defaults in DEFAULTS if option in options)
    return str(getattr(settings, option.toml_key))
