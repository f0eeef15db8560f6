"""The options of the LoRA runtime, as named on the command line and in `[models.adapter]`.

They are converted to a LoraSettings instead of being fields of EngineSettings, because one of them
switches the runtime on and sizes may have units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.config.settings import LoraSettings, LoraSource
from penstock.config.validation import SettingsError, check_lora

LORA_TABLE: Final = "adapter"
LORA_KEYS: Final = (
    "enable_lora",
    "lora",
    "lora_max_adapters",
    "lora_max_rank",
    "lora_max_bytes",
)
UNIT_POWERS: Final[dict[str, int]] = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"\s*(\d{1,18})\s*(?:([kmgt])(i?)b?|b)?\s*", re.IGNORECASE)


def lora_values(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the LoRA options in `source`, from its table `adapter` and from its own keys; the
    latter win.

    Raises SettingsError for an unknown key in the table.
    """
    table = source.get(LORA_TABLE, {})
    if not isinstance(table, Mapping):
        raise SettingsError(f"{LORA_TABLE} must be a table with the keys {', '.join(LORA_KEYS)}")
    unknown = sorted(set(table) - set(LORA_KEYS))
    if unknown:
        raise SettingsError(f"unknown key {unknown[0]!r} in [{LORA_TABLE}]")
    return {**table, **{key: source[key] for key in LORA_KEYS if key in source}}


def without_lora(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return `source` without the LoRA options."""
    return {key: value for key, value in source.items() if key not in (LORA_TABLE, *LORA_KEYS)}


def lora_settings(sources: Sequence[Mapping[str, Any]]) -> LoraSettings | None:
    """Merge the LoRA options of several sources; later sources win. Returns None if no source
    enables LoRA. Raises SettingsError."""
    merged: dict[str, Any] = {}
    for source in sources:
        merged.update({key: value for key, value in source.items() if value is not None})
    preload = tuple(_source(one) for one in _listed(merged.get("lora", ())))
    wanted = merged.get("enable_lora")
    if not isinstance(wanted, (bool, type(None))):
        raise SettingsError("enable_lora must be true or false")
    if wanted is False and preload:
        raise SettingsError("lora names adapters, and enable_lora is false")
    limits = {
        "max_adapters": merged.get("lora_max_adapters"),
        "max_rank": merged.get("lora_max_rank"),
        "max_bytes": _max_bytes(merged.get("lora_max_bytes")),
    }
    given = {key: value for key, value in limits.items() if value is not None}
    try:
        settings = msgspec.convert({**given, "preload": preload}, LoraSettings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"[{LORA_TABLE}] lora_max: {error}") from None
    check_lora(settings)
    return settings if wanted or preload else None


def _listed(value: Any) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise SettingsError("lora must be a list of adapters")
    return value


def _source(value: Any) -> LoraSource:
    """Parse an adapter to load at the start: ALIAS=SOURCE, or a table (JSON on the command line)
    with the keys alias, source and pinned."""
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        alias, _, folder = value.partition("=")
        value = {"alias": alias, "source": folder}
    try:
        if isinstance(value, str):
            value = msgspec.json.decode(value)
        found = msgspec.convert(value, LoraSource)
    except msgspec.DecodeError as error:
        raise SettingsError(
            "lora must be ALIAS=SOURCE, or an object with alias, source and pinned:"
            f" {str(error).replace('`', chr(39))}"
        ) from None
    return msgspec.structs.replace(found, alias=found.alias.strip())


def _max_bytes(value: Any) -> int | None:
    return None if value is None else size_bytes("lora_max_bytes", value)


def size_bytes(key: str, value: Any) -> int:
    """Return a size in bytes. `value`: a number of bytes, or text with a unit: 1 KB is 1,000 bytes,
    1 KiB is 1,024 bytes.

    Raises SettingsError, whose message names `key`.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise SettingsError(f"{key} must be a size such as 512MiB or 8GB, not {value!r}")
    number, unit, binary = match.groups()
    if not unit:
        return int(number)
    base = 1024 if binary else 1000
    return int(number) * int(base ** UNIT_POWERS[unit.lower()])
