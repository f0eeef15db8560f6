"""The default sampling parameters of a model: the operator's, the model's own, the catalogue's or
the built-in ones."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.models.hub.catalogue import entry_of
from penstock.models.hub.model_files import ModelFiles

Source = Literal["general.sampling", "generation_config.json", "catalogue", "built-in"]

BUILT_IN: Final = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
"""The default values of llama.cpp. At temperature 1 without truncation, a small model writes
nonsense."""
SHOWN: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The sampling parameters that server options can set."""
_SAMPLED_BY: Final = ("temperature", "top_k", "top_p", "min_p")
_OFF: Final = {"top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}


class SamplingDefaults(msgspec.Struct, frozen=True):
    """The sampling parameters of a model for requests that do not set them.

    - `source`: the origin of the values, except those of `options`.
    - `options`: the names of the parameters that the operator set.
    """

    sampling: Sampling
    source: Source
    options: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float | None]:
        """The parameters listed in SHOWN, by name. None means that the parameter is off; the
        temperature is always a number."""
        given = {name: getattr(self.sampling, name) for name in SHOWN}
        values = {name: None if value == _OFF.get(name) else value for name, value in given.items()}
        return values | {
            "temperature": 1.0 if given["temperature"] is None else given["temperature"]
        }

    def __str__(self) -> str:
        """Return the parameters and their origin on one line, for the log."""
        values = self.values.items()
        shown = ", ".join(f"{name} {value:g}" for name, value in values if value is not None)
        origin = [_ORIGINS[self.source]]
        if self.options:
            origin.append(f"options: {', '.join(self.options)}")
        return f"{shown} ({'; '.join(origin)})"


_ORIGINS: Final[dict[Source, str]] = {
    "general.sampling": "general.sampling of the file",
    "generation_config.json": "the model's generation_config.json",
    "catalogue": "Penstock's catalogue",
    "built-in": "built in: the model has none",
}


def operator_sampling(settings: EngineSettings) -> Sampling:
    """Return the sampling parameters that the operator set. None in a field means that the model's
    own value applies."""
    return Sampling(**{name: getattr(settings, name) for name in SHOWN})


def sampling_defaults(
    files: ModelFiles,
    own: Sampling,
    asked: Sampling = Sampling(),  # noqa: B008
) -> SamplingDefaults:
    """Return the default sampling parameters of one model.

    - `own`: the parameters in the model's files.
    - `asked`: the operator's parameters, each of which overrides one default.

    Apart from the operator's, the values come from one source: a parameter that the model's files
    omit is off, not taken from the catalogue.
    """
    sampling, source = _of_model(files, own)
    options = tuple(name for name in SHOWN if getattr(asked, name) is not None)
    given = {name: getattr(asked, name) for name in options}
    if asked.top_k is not None:
        given["top_k"] = max(asked.top_k, 0)
    return SamplingDefaults(msgspec.structs.replace(sampling, **given), source, options)


def _of_model(files: ModelFiles, own: Sampling) -> tuple[Sampling, Source]:
    if any(getattr(own, name) is not None for name in _SAMPLED_BY):
        return own, "general.sampling" if files.kind == "gguf" else "generation_config.json"
    sampling, source = _fallback(files)
    if own.repetition_penalty is not None:
        sampling = msgspec.structs.replace(sampling, repetition_penalty=own.repetition_penalty)
    return sampling, source


def _fallback(files: ModelFiles) -> tuple[Sampling, Source]:
    entry = entry_of(files)
    if entry is None or entry.sampling is None:
        return BUILT_IN, "built-in"
    return entry.sampling, "catalogue"
