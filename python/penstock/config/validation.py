"""Checks settings before anything starts: ranges, types and names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from penstock.config.settings import (
    EngineSettings,
    LoraSettings,
    MediaSettings,
    ModelSettings,
    ServerSettings,
    StoreSettings,
)
from penstock.config.weight_types import KNOWN, parse_weight_type

# Field -> (smallest value, largest value). None is allowed if the field's type allows None.
ENGINE_RANGES: Final[dict[str, tuple[float, float]]] = {
    "tensor_parallel_size": (1, 64),
    "max_model_len": (16, 2**24),
    "kv_cache_memory_mb": (1, 2**24),
    "cpu_kv_cache_memory_mb": (0, 2**24),
    "state_snapshot_memory_mb": (0, 2**24),
    "encoder_cache_mb": (1, 2**24),
    "block_size": (1, 1024),
    "max_num_seqs": (1, 4096),
    "max_queue": (1, 2**20),
    "max_num_batched_tokens": (16, 2**20),
    "num_draft_tokens": (1, 15),  # the scheduler's MAX_DRAFT_TOKENS
    "draft_vocabulary": (0, 2**24),
    "threads": (1, 1024),  # the limit of csrc's ThreadPool
    "temperature": (0, 2),
    "top_k": (-1, 2**31 - 1),  # 0 and -1 switch top-k off
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
}
LORA_RANGES: Final[dict[str, tuple[int, int]]] = {
    "max_adapters": (1, 2**16),
    "max_rank": (1, 2**14),
    "max_bytes": (1, 2**48),
}
MAX_ALIAS_BYTES: Final = 256
SERVER_RANGES: Final[dict[str, tuple[float, float]]] = {
    "port": (0, 65535),
    "workers": (1, 256),
    "keep_alive_interval_ms": (1, 24 * 3600 * 1000),
    "body_limit_bytes": (1024, 2**32),
    "drain_timeout_s": (0.0, 24 * 3600.0),
    "stall_timeout_s": (1.0, 24 * 3600.0),
    "max_connections": (1, 2**20),
}
STORE_RANGES: Final[dict[str, tuple[int, int]]] = {
    "response_expiry_s": (0, 2**31),
    "max_responses_bytes": (1, 2**48),
    "session_expiry_s": (1, 2**31),
    "max_sessions": (1, 2**31),
    "max_sessions_bytes": (1, 2**48),
    "file_expiry_s": (1, 2**31),
    "max_files": (1, 2**20),
    "max_files_bytes": (1, 2**48),
    "max_skills_bytes": (1, 2**48),
    "max_chats_bytes": (1, 2**48),
}
MEDIA_RANGES: Final[dict[str, tuple[float, float]]] = {
    "max_image_pixels": (1024, 2**30),
    "max_video_frames": (1, 4096),
    "max_media_duration_s": (1.0, 24 * 3600.0),
    "max_media_bytes": (1024, 2**32),
    "max_media_items": (0, 4096),
    "media_processes": (1, 256),
}
_S = TypeVar("_S", bound=msgspec.Struct)
DEVICES: Final = "auto|cpu|cuda(:[0-9]{1,3})?"
# The word by which requests name the default model.
RESERVED_NAME: Final = "default"


class SettingsError(ValueError):
    """A setting has an unusable value. The message names the setting and the allowed values."""


def validation_message(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Return msgspec's error message with the key first, followed by the allowed values of the key
    if they are strings from a fixed set. `kind`: the struct with the key."""
    text = str(error).replace("Object contains unknown field", "unknown key").replace("`", "'")
    what, found, where = text.partition(" - at '$.")
    if not found:
        return text
    key = where[:-1]
    hint = get_type_hints(kind).get(key)
    values = [v for part in (hint, *get_args(hint)) for v in get_args(part) if isinstance(v, str)]
    allowed = f"; it may be {', '.join(map(repr, values))}" if values else ""
    return f"{key}: {what[0].lower()}{what[1:]}{allowed}"


def build_settings(kind: type[_S], name: str, sources: Sequence[Mapping[str, Any]]) -> _S:
    """Return settings of type `kind` with the values of `sources`; later sources win, and values of
    None are ignored. Raises SettingsError for unknown keys and values of the wrong type.

    `name`: the TOML table that the message names.
    """
    merged: dict[str, Any] = {}
    for source in sources:
        merged.update({key: value for key, value in source.items() if value is not None})
    check_keys(merged, kind.__struct_fields__, name)
    try:
        return msgspec.convert(merged, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(f"[{name}] {validation_message(error, kind)}") from None


def check_keys(table: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    """Raise SettingsError if the TOML table `name` has a key that is not among `known`."""
    unknown = sorted(set(table) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SettingsError(f"unknown key {unknown[0]!r} in [{name}]{hint}")


def check_engine(settings: EngineSettings) -> None:
    """Raise SettingsError if a setting of the engine has the wrong type or is out of range."""
    try:
        msgspec.convert(msgspec.to_builtins(settings), EngineSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(validation_message(error, EngineSettings)) from None
    for name, (least, most) in ENGINE_RANGES.items():
        check_range(name, getattr(settings, name), least, most)
    if not settings.model:
        raise SettingsError("model must not be empty")
    if not re.fullmatch(DEVICES, settings.device):
        raise SettingsError(f"device is {settings.device!r}; it must be auto, cpu, cuda or cuda:N")
    form = settings.quantization
    if form is not None and parse_weight_type(form) is None:
        raise SettingsError(
            f"quantization: {form!r} is no type of weights; it may be {', '.join(map(repr, KNOWN))}"
        )
    if settings.draft_model is not None and settings.speculative_algorithm == "mtp":
        raise SettingsError(
            "draft_model is set and speculative_algorithm is 'mtp'; draft tokens come from a draft"
            " model or from MTP heads, not from both"
        )
    if settings.lora is not None:
        check_lora(settings.lora)


def check_lora(settings: LoraSettings) -> None:
    """Raise SettingsError if a LoRA setting is out of range or two adapters have the same alias."""
    for name, (least, most) in LORA_RANGES.items():
        check_range(f"lora_{name}", getattr(settings, name), least, most)
    aliases = [source.alias for source in settings.preload]
    for source in settings.preload:
        if not source.source or not 1 <= len(source.alias.strip().encode()) <= MAX_ALIAS_BYTES:
            raise SettingsError(
                f"lora must be ALIAS=SOURCE: an alias of 1..{MAX_ALIAS_BYTES} bytes, and a folder"
                " or a Hugging Face id"
            )
        if aliases.count(source.alias) > 1:
            raise SettingsError(f"lora has two adapters with the alias {source.alias!r}")
    if len(aliases) > settings.max_adapters:
        raise SettingsError(
            f"lora has {len(aliases)} adapters; lora_max_adapters is {settings.max_adapters}"
        )


def check_server(settings: ServerSettings) -> None:
    """Raise SettingsError if a setting of the server is out of range."""
    for name, (least, most) in SERVER_RANGES.items():
        check_range(name, getattr(settings, name), least, most)
    for network in settings.fetch_allow:
        _check_network(network)
    check_store(settings.store)
    check_media(settings.media)


def check_media(settings: MediaSettings) -> None:
    """Raise SettingsError if a setting of media is out of range."""
    for name, (least, most) in MEDIA_RANGES.items():
        check_range(name, getattr(settings, name), least, most)


def check_store(settings: StoreSettings) -> None:
    """Raise SettingsError if a setting of the store is out of range."""
    for name, (least, most) in STORE_RANGES.items():
        check_range(name, getattr(settings, name), least, most)


def check_models(models: Sequence[ModelSettings], default_model_id: str | None = None) -> None:
    """Raise SettingsError if a name of a model is empty, reserved or used twice. Ids that are still
    "" are skipped."""
    if any(not alias for model in models for alias in model.aliases):
        raise SettingsError("an alias of a model must not be empty")
    names = [name for model in models for name in (model.id, *model.aliases) if name]
    for name in names:
        if name == RESERVED_NAME:
            raise SettingsError(f"no model can have the name {RESERVED_NAME!r}")
        if names.count(name) > 1:
            raise SettingsError(f"two models have the name {name!r}; give one of them another id")
    if default_model_id is not None and default_model_id not in (model.id for model in models):
        raise SettingsError(f"default_model_id {default_model_id!r} is none of the models")


def _check_network(text: str) -> None:
    try:
        ip_network(text)
    except ValueError:
        raise SettingsError(
            f"fetch_allow must have addresses or networks such as 10.1.0.0/16, not {text!r}"
        ) from None


def check_range(name: str, value: float | None, least: float, most: float) -> None:
    """Raise SettingsError if the value of the setting `name` is out of range. None is accepted."""
    if value is not None and not least <= value <= most:
        raise SettingsError(f"{name} must be from {least} to {most}, not {value}")
