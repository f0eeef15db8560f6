"""Reads PEFT's adapter_config.json: ranks, scales and target modules.

A key that changes what an adapter computes is either supported or refused by name. An unknown key
is refused unless its value is empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.adapters.errors import AdapterRefused, invalid_adapter

CONFIG_NAME: Final = "adapter_config.json"
WEIGHTS_NAME: Final = "adapter_model.safetensors"
MAX_CONFIG_BYTES: Final = 1 << 20
# These keys do not change what the adapter computes.
IGNORED: Final = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",
        "inference_mode",
        "layers_pattern",
        "loftq_config",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "velora_config",
    }
)
# key -> the feature that it enables; refused unless its value is empty
REFUSED: Final = {
    "use_dora": "DoRA",
    "lora_bias": "a bias",
    "modules_to_save": "whole modules (modules_to_save)",
    "trainable_token_indices": "extra vocabulary",
    "target_parameters": "adapters of bare parameters",
    "layer_replication": "repeated layers",
    "alora_invocation_tokens": "activated LoRA",
    "use_qalora": "QALoRA",
    "megatron_config": "Megatron layers",
}
# Initialisers that leave the base weights unchanged. Others move a part of them to the adapter.
PLAIN_INITIALISERS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
TASKS: Final = (None, "CAUSAL_LM", "FEATURE_EXTRACTION")
MAX_ALPHA: Final = 1e6
MAX_EXPRESSIONS: Final = 64
MAX_REPEATS: Final = 2
_PLAIN_NAME: Final = re.compile(r"[\w.]+")
_REPEATED_GROUP: Final = re.compile(r"\)[*+?{]|\{")
_REPEAT: Final = re.compile(r"[*+]|(?<!\()\?")
_CHOICE_OF_NAMES: Final = re.compile(r"\((?:\?:)?\w+(?:\|\w+)*\)")


class _Config(msgspec.Struct):
    """The keys of adapter_config.json that are read."""

    peft_type: str
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    layers_to_transform: list[int] | int | None = None
    bias: str | None = "none"
    init_lora_weights: bool | str | None = True
    task_type: str | None = None


class PeftConfig:
    """The config of one adapter. Modules are named as in the weight file without the prefix
    `base_model.model.`, such as "model.layers.0.self_attn.q_proj"."""

    def __init__(self, data: bytes) -> None:
        """Decode adapter_config.json. Raises AdapterRefused naming the key that is malformed or not
        supported."""
        if len(data) > MAX_CONFIG_BYTES:
            raise AdapterRefused(
                "lora_adapter_file_too_large",
                f"{CONFIG_NAME} is larger than {MAX_CONFIG_BYTES} bytes",
                field="lora_path",
            )
        _refuse_unsupported(_decode(data, dict[str, Any]))
        self._config = _decode(data, _Config)
        _check(self._config)
        self._ranks = Patterns("rank_pattern", self._config.rank_pattern or {})
        self._alphas = Patterns("alpha_pattern", self._config.alpha_pattern or {})

    def rank(self, module: str) -> int:
        """Return the rank of a module."""
        return int(self._ranks.get(module, self._config.r))

    def scale(self, module: str) -> float:
        """Return the factor by which the module's update B A x is multiplied."""
        rank = self.rank(module)
        alpha = self._alphas.get(module, self._config.lora_alpha)
        return float(alpha / (math.sqrt(rank) if self._config.use_rslora else rank))

    def targets(self, module: str, layer: int) -> bool:
        """Return whether the config targets the module. If `target_modules` is a regular
        expression, the result is true unless the module is excluded, because PEFT saves only
        modules that match."""
        config = self._config
        excluded, wanted = config.exclude_modules, config.target_modules
        if not isinstance(excluded, str) and _names(module, excluded or ()):
            return False
        if isinstance(wanted, str):
            return True
        if not _names(module, wanted or ()):
            return False
        layers = config.layers_to_transform
        if layers is None or layers == []:
            return True
        return layer == layers if isinstance(layers, int) else layer in layers


class Patterns:
    """A PEFT table from modules to numbers. A key is a module's name, the end of the name after a
    dot, or a regular expression for either; the first matching key applies."""

    def __init__(self, key: str, table: Mapping[str, float]) -> None:
        """Compile the keys of `table`. `key`: the config key of the table. Raises AdapterRefused
        for an expression with unbounded backtracking."""
        self._table = list(table.items())
        self._expressions: dict[str, re.Pattern[str]] = {}
        for name in table:
            if not _PLAIN_NAME.fullmatch(name):
                self._expressions[name] = _compile(key, name)
        if len(self._expressions) > MAX_EXPRESSIONS:
            raise _wrong(key, f"has more than {MAX_EXPRESSIONS} regular expressions")

    def get(self, module: str, default: float) -> float:
        for name, value in self._table:
            expression = self._expressions.get(name)
            if expression.match(module) if expression else _names(module, (name,)):
                return value
        return default


def _names(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def _compile(key: str, expression: str) -> re.Pattern[str]:
    """Compile a regular expression of the config key `key`. Matching costs at most quadratic time
    in the length of a name: few parts may be repeated or optional, and a group may only choose
    among plain names. Raises AdapterRefused for other expressions."""
    rest = _CHOICE_OF_NAMES.sub("", expression)
    if (
        len(expression) > 512
        or len(_REPEAT.findall(expression)) > MAX_REPEATS
        or _REPEATED_GROUP.search(expression)
        or ("(" in rest and "|" in rest)
    ):
        raise _wrong(
            key,
            "has a regular expression that repeats groups, has too many repetitions, or chooses"
            " among expressions",
        )
    try:
        return re.compile(rf"(.*\.)?({expression})$")
    except (re.error, RecursionError, OverflowError):
        raise _wrong(key, "has a key that is not a regular expression") from None


def _decode(data: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else "is not valid JSON"
        raise invalid_adapter(f"{CONFIG_NAME}: {reason.replace('`', chr(39))}") from None


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    for key, feature in REFUSED.items():
        if values.get(key):
            raise _wrong(key, f"{feature} is not supported")
    known = {*IGNORED, *REFUSED, *_Config.__struct_fields__}
    for key, value in values.items():
        if key not in known and value:
            raise _wrong(key[:80], "is not supported")


def _check(config: _Config) -> None:
    if config.peft_type != "LORA":
        raise _wrong("peft_type", "must be LORA")
    if config.bias not in (None, "none"):
        raise _wrong("bias", 'must be "none": biases are not supported')
    if config.init_lora_weights not in PLAIN_INITIALISERS:
        raise _wrong(
            "init_lora_weights",
            "names an initialiser that changes the base weights; convert the adapter to a plain"
            " LoRA when you save it",
        )
    if config.task_type not in TASKS:
        raise _wrong("task_type", "must be CAUSAL_LM")
    if not config.target_modules:
        raise _wrong("target_modules", "must name modules")
    _check_numbers("r", [config.r], least=1)
    _check_numbers("rank_pattern", list((config.rank_pattern or {}).values()), least=1)
    _check_numbers("lora_alpha", [config.lora_alpha], least=-MAX_ALPHA)
    alphas = list((config.alpha_pattern or {}).values())
    _check_numbers("alpha_pattern", alphas, least=-MAX_ALPHA)


def _check_numbers(key: str, numbers: Sequence[float], *, least: float) -> None:
    if not all(least <= number <= MAX_ALPHA for number in numbers):
        raise _wrong(key, f"must be in the range {least:g} to {MAX_ALPHA:g}")


def _wrong(key: str, why: str) -> AdapterRefused:
    return invalid_adapter(f"{CONFIG_NAME}: {key}: {why}")
