"""The options that set a field of EngineSettings, ServerSettings or StoreSettings, and those of the
LoRA runtime, as one table.

An option that is not given is None: then the TOML file's value counts, else the default, which the
help shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Optional

import typer

from penstock.config import (
    EngineSettings,
    LoraSettings,
    ServerSettings,
    ServingSettings,
    SettingsError,
    StoreSettings,
    read_environment,
)
from penstock.config.absent import ABSENT, AbsentOption
from penstock.config.load import load_engine, load_serving
from penstock.config.settings import ToolSyntaxName

MODEL_PANEL: Final = "Model"
ENGINE_PANEL: Final = "Engine"
LORA_PANEL: Final = "Adapters"
SERVER_PANEL: Final = "Server"
STORE_PANEL: Final = "Store"
LOG_PANEL: Final = "Logs and metrics"
# Shorter than the kinds' own names, which leave the help too little of a narrow terminal.
METAVARS: Final[dict[Any, str]] = {int: "N", float: "SECONDS", str: "TEXT", list[str]: "TEXT"}
MODEL_HELP: Final = "A name of `penstock models`, a .gguf file, a model folder or a hub id."


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
        Literal["fp8"],
        "On a GPU, round float weights of layers to 8 bits.",
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
        "context_tokens",
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
        "block_tokens",
        ("--block-tokens", "--pa-block-size"),
        int,
        "Tokens of one block of the cache.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "max_seqs", ("--max-seqs",), int, "Sequences computed at the same time.", ENGINE_PANEL
    ),
    SettingOption(
        "max_queue",
        ("--max-queue",),
        int,
        "Sequences that may wait; beyond, requests get 429.",
        ENGINE_PANEL,
    ),
    SettingOption(
        "token_budget",
        ("--token-budget", "--max-num-batched-tokens"),
        int,
        "Tokens computed in one step.",
        ENGINE_PANEL,
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
        "Seconds that a client may leave its stream unread.",
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
        "session_expiry_s",
        ("--session-expiry",),
        int,
        "Seconds that an unused session is kept.",
        STORE_PANEL,
    ),
    SettingOption("max_sessions", ("--max-sessions",), int, "Sessions kept.", STORE_PANEL),
    SettingOption(
        "file_expiry_s", ("--file-expiry",), int, "Seconds that a file is kept.", STORE_PANEL
    ),
    SettingOption("max_files", ("--max-files",), int, "Files kept.", STORE_PANEL),
)
SERVE_OPTIONS: Final = SERVER_OPTIONS + STORE_OPTIONS


@dataclass(frozen=True)
class Chosen:
    """The settings options that were given."""

    engine: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None

    def serving(self) -> ServingSettings:
        """Defaults, then environment and file, then options. Raises SettingsError."""
        environment = read_environment()
        return load_serving(
            self.engine, self.server, self.store, file=self.file, environment=environment
        )

    def one_engine(self) -> EngineSettings:
        """The same for a command that needs one model and no server."""
        return load_engine(self.engine, file=self.file)


def with_settings(*, server: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command MODEL, `--config` and the settings options; it gets them as `chosen`, its
    first argument, beside its own options."""
    options = MODEL_OPTIONS + (SERVE_OPTIONS if server else ())

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapper(**given: Any) -> None:
            values = {o.field: _value(o, given) for o in options}
            engine = {o.field: values[o.field] for o in MODEL_OPTIONS}
            engine["model"] = _one_of(given.pop("model"), given.pop("model_id"), "model")
            chosen = Chosen(engine, file=given.pop("config"))
            if server:
                chosen.server.update({o.field: values[o.field] for o in SERVER_OPTIONS})
                chosen.server.update({o.name: given.pop(o.name) for o in ABSENT})
                chosen.store.update({o.field: values[o.field] for o in STORE_OPTIONS})
            command(chosen, **given)

        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shared = [parameter for option in options for parameter in _parameters(option)]
        absent = [_absent_parameter(option) for option in ABSENT if server]
        parameters = [*_model_parameters(), *shared, _config_parameter(), *absent, *own]
        wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        )
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _model_parameters() -> list[inspect.Parameter]:
    default = EngineSettings().model
    argument = typer.Argument(None, help=MODEL_HELP, show_default=default)
    option = typer.Option(
        None, "-m", "--model-id", help="The same as MODEL.", rich_help_panel=MODEL_PANEL
    )
    return [_make("model", Optional[str], argument), _make("model_id", Optional[str], option)]  # noqa: UP045


def _config_parameter() -> inspect.Parameter:
    option = typer.Option(
        None,
        "--config",
        help="TOML file: one model or several, and their settings. Options win over it.",
        rich_help_panel=MODEL_PANEL,
        show_default=False,
    )
    return _make("config", Optional[Path], option)  # noqa: UP045


def _absent_parameter(option: AbsentOption) -> inspect.Parameter:
    """Recognised, so that it can be refused by name; not shown."""
    flag = "--" + option.name.replace("_", "-")
    return _make(
        option.name, Optional.__getitem__(option.kind), typer.Option(None, flag, hidden=True)
    )


def _parameters(option: SettingOption) -> list[inspect.Parameter]:
    """The option as shown, and a hidden one for each alias: long lists of flags are cut off in a
    narrow terminal."""
    default = option.default or str(getattr(_owner(option)(), option.field))
    names = _names(option)
    text = option.help
    if len(names) > 1:
        text += f" Also {option.flags[-1]}."
    if option.kind is not bool:
        text += rf" \[default: {default}]"
    flags = option.flags[: len(option.flags) - len(names) + 1]
    panel, metavar = option.panel, option.metavar or METAVARS.get(option.kind)
    infos = [typer.Option(None, *flags, help=text, rich_help_panel=panel, metavar=metavar)]
    infos += [typer.Option(None, flag, hidden=True) for flag in option.flags[len(flags) :]]
    kind: Any = Optional.__getitem__(option.kind)
    return [_make(name, kind, info) for name, info in zip(names, infos, strict=True)]


def _owner(option: SettingOption) -> type[EngineSettings | ServerSettings | StoreSettings]:
    if option in STORE_OPTIONS:
        return StoreSettings
    return ServerSettings if option in SERVER_OPTIONS else EngineSettings


def _names(option: SettingOption) -> list[str]:
    """The parameter of the option, and of each alias; a short flag is no alias."""
    long = [flag for flag in option.flags if flag.startswith("--")]
    return [option.field, *(f"{option.field}_{index}" for index in range(1, len(long)))]


def _value(option: SettingOption, given: dict[str, Any]) -> Any:
    value = None
    for name in _names(option):
        value = _one_of(value, given.pop(name), option.field)
    return value


def _one_of(first: Any, second: Any, name: str) -> Any:
    if first is not None and second is not None and first != second:
        raise SettingsError(f"{name} is given twice: {first} and {second}")
    return first if first is not None else second


def _make(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
