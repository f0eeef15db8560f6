"""Recommends the settings of an engine for a candidate, as a command and as a settings file."""

from __future__ import annotations

import json
import shlex
from typing import Any

import msgspec

from penstock.config import EngineSettings
from penstock.tune.candidates import Remarks, Tried
from penstock.tune.fitting import Fitting
from penstock.tune.machine import Sizes
from penstock.tune.types import RecommendedSettings


def recommend(
    tried: Tried, context: int, named: RecommendedSettings, remarks: Remarks
) -> RecommendedSettings:
    """Return `named` with the settings for a candidate: with the default KV cache if the context
    fits in it, or else with the type in which it does, or else with the greatest context."""
    candidate, fitting = tried.candidate, tried.fitting
    if candidate.fit_status != "fits":
        smaller = [one for one in tried.others if one.fits_context(context)]
        if smaller:
            fitting = smaller[0]
            remarks.warnings.append(
                f"a context of {context} fits only with a KV cache of"
                f" {fitting.settings.kv_cache_dtype}"
            )
        else:
            fewer = candidate.max_context_tokens
            remarks.warnings.append(
                f"a context of {context} does not fit; the recommended settings have {fewer}"
            )
            context = fewer
    return _settings(fitting, context, named)


def _settings(fitting: Fitting, context: int, named: RecommendedSettings) -> RecommendedSettings:
    rows = fitting.most_rows(context)
    sizes = fitting.sizes(context, rows)
    if not fitting.fits(sizes):  # the cache has room for the contexts alone
        sizes = Sizes(context, rows, fitting.batch * context)
    chosen = fitting.settings_for(sizes)
    defaults = EngineSettings()
    return msgspec.structs.replace(
        named,
        dtype=chosen.dtype,
        quantization=chosen.quantization,
        kv_cache_dtype=chosen.kv_cache_dtype,
        max_model_len=context,
        max_num_seqs=rows,
        kv_cache_memory_mb=chosen.kv_cache_memory_mb,
        encoder_cache_mb=None
        if chosen.encoder_cache_mb == defaults.encoder_cache_mb
        else chosen.encoder_cache_mb,
    )


def serve_command(settings: RecommendedSettings) -> str:
    """Return the `penstock serve` command with these settings."""
    options = {
        "--device": (settings.device, "auto"),
        "--dtype": (settings.dtype, "auto"),
        "--quantization": (settings.quantization, None),
        "--kv-cache-dtype": (settings.kv_cache_dtype, "auto"),
        "--max-model-len": (settings.max_model_len, None),
        "--max-num-seqs": (settings.max_num_seqs, None),
        "--kv-cache-memory": (settings.kv_cache_memory_mb, None),
        "--encoder-cache-memory": (settings.encoder_cache_mb, None),
    }
    words = ["penstock", "serve", settings.model]
    for flag, (value, default) in options.items():
        if value != default:
            words += [flag, str(value)]
    return shlex.join(words)


def settings_file(settings: RecommendedSettings) -> str:
    """Return settings as a TOML file for `--config`."""
    values: dict[str, Any] = msgspec.to_builtins(settings)
    model = values.pop("model")
    lines = [f"model = {_quoted(model)}", "", "[engine]"]
    lines += [
        f"{key} = {_quoted(value) if isinstance(value, str) else value}"
        for key, value in values.items()
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a basic string of TOML, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
