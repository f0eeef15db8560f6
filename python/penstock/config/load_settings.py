"""Merges settings. Later sources override earlier ones: defaults, TOML file, command-line options.

The file has either the keys `model` and `served_model_name`, or `default_model_id` and one table
`[[models]]` per model. It may also have the tables `[engine]`, `[server]`, `[store]`, `[media]`,
`[agent]` and `[sandbox]`. The keys of the first four, and of `[[models]]`, are the fields of
EngineSettings, ServerSettings, StoreSettings, MediaSettings and ModelSettings;
`config.agent_options` has the keys of the others.
`[engine]` applies to every model, except for keys that the model sets itself. `[models.adapter]` or
`[engine.adapter]` has the options of the LoRA runtime. FORMER_KEYS are still accepted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.config.agent_options import agent_settings, agent_values, file_values, without_agent
from penstock.config.environment import Environment
from penstock.config.lora_options import lora_settings, lora_values, size_bytes, without_lora
from penstock.config.settings import (
    AgentSettings,
    EngineSettings,
    MediaSettings,
    ModelSettings,
    ServerSettings,
    ServingSettings,
    StoreSettings,
)
from penstock.config.validation import (
    SettingsError,
    build_settings,
    check_engine,
    check_media,
    check_models,
    check_server,
    validation_message,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MODEL_KEYS: Final = tuple(name for name in ModelSettings.__struct_fields__ if name != "engine")

# Former key of [engine] and of `LLM` -> the key that replaced it.
FORMER_KEYS: Final[Mapping[str, str]] = {
    "block_tokens": "block_size",
    "cache_dtype": "kv_cache_dtype",
    "cache_mb": "kv_cache_memory_mb",
    "context_tokens": "max_model_len",
    "cpu_level": "cpu_isa",
    "host_cache_mb": "cpu_kv_cache_memory_mb",
    "kernels": "kernel_backend",
    "max_seqs": "max_num_seqs",
    "prefix_cache_n": "enable_prefix_caching",
    "quantize": "quantization",
    "speculation": "speculative_algorithm",
    "tensor_parallel": "tensor_parallel_size",
    "token_budget": "max_num_batched_tokens",
    "tool_syntax": "tool_call_parser",
    "without_kernels": "disabled_kernels",
}
MEMORY_KEYS: Final = (
    "kv_cache_memory_mb",
    "cpu_kv_cache_memory_mb",
    "state_snapshot_memory_mb",
    "encoder_cache_mb",
)
MEDIA_KEYS: Final = MediaSettings.__struct_fields__
DTYPE_NAMES: Final = {
    "float16": "f16",
    "float32": "f32",
    "fp8": "f8e4m3",
    "fp8_e4m3": "f8e4m3",
    "q8_0": "int8",
}
MIB: Final = 2**20


class SettingsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A settings file whose tables are not validated yet."""

    model: str | None = None
    served_model_name: str | list[str] | None = None
    default_model_id: str | None = None
    models: list[dict[str, Any]] = []
    engine: dict[str, Any] = {}
    server: dict[str, Any] = {}
    store: dict[str, Any] = {}
    media: dict[str, Any] = {}
    agent: dict[str, Any] = {}
    sandbox: dict[str, Any] = {}


def load_serving(
    engine_options: Mapping[str, Any],
    server_options: Mapping[str, Any],
    store_options: Mapping[str, Any],
    *,
    file: Path | None,
    environment: Environment,
    names: Sequence[str] = (),
) -> ServingSettings:
    """Merge defaults, environment, file and options into the settings of a server. Options that
    were not given are None. Raises SettingsError.

    `names`: the names of the only model in requests.
    """
    document = read_toml(file) if file is not None else SettingsFile()
    from_environment = {"keep_alive_interval_ms": environment.keep_alive_interval_ms}
    store = build_settings(StoreSettings, "store", [document.store, store_options])
    _check_no_tables(document.server)
    agent = _agent(document, server_options)
    media = _media(document, server_options)
    options = {key: value for key, value in server_options.items() if key not in MEDIA_KEYS}
    sources = [from_environment, document.server, options]
    plain = [without_agent(source) for source in sources]
    tables = {"store": store, "media": media, "agent": agent}
    server = build_settings(ServerSettings, "server", [*plain, tables])
    check_server(server)
    if server.agent.mcp_port is not None and server.agent.mcp_port == server.port:
        raise SettingsError(f"mcp_port must not be the server's own port, {server.port}")
    models = tuple(_models(document, engine_options, names))
    check_models(models)
    return ServingSettings(models, document.default_model_id, server)


def load_engine(options: Mapping[str, Any], *, file: Path | None) -> EngineSettings:
    """Merge defaults, file and options into the settings of one engine. If the file has several
    models, use its default model. Raises SettingsError."""
    document = read_toml(file) if file is not None else SettingsFile()
    models = _models(document, options)
    wanted = document.default_model_id
    named = [m for m in models if wanted is not None and wanted in (m.id, m.engine.model)]
    return (named or models)[0].engine


def load_agent(options: Mapping[str, Any], *, file: Path | None) -> AgentSettings:
    """Merge defaults, file and options into the settings of the tools that run beside a model.
    Raises SettingsError."""
    return _agent(read_toml(file) if file is not None else SettingsFile(), options)


def load_media(options: Mapping[str, Any], *, file: Path | None) -> MediaSettings:
    """Merge defaults, file and options into the settings of media for a model without a server.
    Raises SettingsError."""
    media = _media(read_toml(file) if file is not None else SettingsFile(), options)
    check_media(media)
    return media


def read_toml(path: Path) -> SettingsFile:
    """Read the tables of a TOML file. Raises SettingsError, whose message names the file and the
    key."""
    try:
        with path.open("rb") as file:
            return msgspec.convert(tomllib.load(file), SettingsFile)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {validation_message(error, SettingsFile)}") from None


def _models(
    document: SettingsFile, options: Mapping[str, Any], names: Sequence[str] = ()
) -> list[ModelSettings]:
    """Return the settings of the models in `[[models]]`, or of the one model that the file or an
    option names."""
    if not document.models:
        named = {"model": document.model}
        aliases = tuple(dict.fromkeys(names or _listed(document.served_model_name)))
        return [ModelSettings(_engine([named, document.engine, options]), aliases=aliases)]
    if document.model is not None or options.get("model") is not None:
        raise SettingsError("the file has [[models]]; `model` cannot be given beside them")
    if names or document.served_model_name is not None:
        raise SettingsError(
            "served_model_name cannot be given beside [[models]]; give one of them `aliases`"
        )
    return [_model(index, table, document, options) for index, table in enumerate(document.models)]


def _model(
    index: int, table: Mapping[str, Any], document: SettingsFile, options: Mapping[str, Any]
) -> ModelSettings:
    name = f"models.{index}"
    if "model" not in table:
        raise SettingsError(f"[[{name}]] needs the key 'model'")
    own = {key: table[key] for key in MODEL_KEYS if key in table}
    of_engine = {key: value for key, value in table.items() if key not in MODEL_KEYS}
    engine = _engine([document.engine, of_engine, options], name)
    return build_settings(ModelSettings, name, [{"engine": engine}, own])


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else names or []


def _check_no_tables(server: Mapping[str, Any]) -> None:
    """Raise SettingsError if the table `[server]` has the table `store`, `media` or `agent`: they
    are separate tables."""
    for name in ("store", "media", "agent"):
        if (name != "agent" and name in server) or isinstance(server.get(name), Mapping):
            raise SettingsError(f"unknown key {name!r} in [server]; [{name}] is a table of its own")


def _agent(document: SettingsFile, options: Mapping[str, Any]) -> AgentSettings:
    in_file = file_values(document.agent, document.sandbox, document.server)
    return agent_settings([in_file, agent_values(options)])


def _media(document: SettingsFile, options: Mapping[str, Any]) -> MediaSettings:
    given = {key: options.get(key) for key in MEDIA_KEYS}
    return build_settings(MediaSettings, "media", [document.media, given])


def _engine(sources: list[Mapping[str, Any]], name: str = "engine") -> EngineSettings:
    lora = lora_settings([lora_values(source) for source in sources])
    own = [with_current_keys(without_lora(source)) for source in sources]
    engine = build_settings(EngineSettings, name, own)
    engine = msgspec.structs.replace(engine, lora=lora)
    check_engine(engine)
    return engine


def with_current_keys(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return `source` with former keys and spellings of engine settings replaced by the current
    ones.

    Raises SettingsError if `source` has both the former and the current name of a key, or a value
    of the wrong type.
    """
    given = {key: value for key, value in source.items() if value is not None}
    current: dict[str, Any] = {}
    for key, value in given.items():
        new_key = FORMER_KEYS.get(key, key)
        if new_key != key and new_key in given:
            raise SettingsError(f"{key} is the former name of {new_key}; set only {new_key}")
        current[new_key] = _current_value(key, value)
    return current


def _current_value(key: str, value: Any) -> Any:
    match FORMER_KEYS.get(key, key):
        case "speculative_algorithm" if isinstance(value, bool):
            return "ngram" if value else "none"
        case "enable_prefix_caching" if key == "prefix_cache_n":
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingsError(
                    f"prefix_cache_n must be an integer of at least 0, not {value!r}"
                )
            return value > 0
        case "dtype" | "kv_cache_dtype" if isinstance(value, str):
            return DTYPE_NAMES.get(value, value)
        case new_key if new_key in MEMORY_KEYS and isinstance(value, str):
            return int(value) if value.isdecimal() else size_bytes(key, value) // MIB
        case _:
            return value
