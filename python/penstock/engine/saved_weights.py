"""Remembers the quantization that a running engine was switched to, so that an engine that is
restarted after a crash has the weights that it had."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from penstock.config import EngineSettings
from penstock.quant.importance import ImportanceMatrix

log = logging.getLogger(__name__)

FILE: Final = "weights.json"


class _Saved(msgspec.Struct, frozen=True):
    """`imatrix`: the name of a file in the same folder, None for none."""

    quantization: str | None
    imatrix: str | None = None


class SavedWeights:
    """The quantization in use, in `folder`, which belongs to one engine and ends with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, quantization: str | None, importance: ImportanceMatrix | None) -> None:
        """Remember the weights in use. A process that ends meanwhile leaves the old ones."""
        former = self._read()
        name = None
        if importance is not None:
            used = None if former is None else former.imatrix
            name = "importance-2.gguf" if used == "importance-1.gguf" else "importance-1.gguf"
            importance.write(self._folder / name)
        partial = self._folder / f".{FILE}"
        partial.write_bytes(msgspec.json.encode(_Saved(quantization, name)))
        os.replace(partial, self._folder / FILE)

    def restored(self, settings: EngineSettings) -> EngineSettings:
        """Return `settings` with the weights that were saved, unchanged if none were."""
        saved = self._read()
        if saved is None:
            return settings
        log.info("the weights are quantized as before the restart: %s", saved.quantization)
        imatrix = None if saved.imatrix is None else str(self._folder / saved.imatrix)
        return msgspec.structs.replace(settings, quantization=saved.quantization, imatrix=imatrix)

    def remove(self) -> None:
        """Delete the files."""
        for path in (*self._folder.glob("importance-*.gguf"), self._folder / FILE):
            with contextlib.suppress(OSError):
                path.unlink()

    def _read(self) -> _Saved | None:
        try:
            return msgspec.json.decode((self._folder / FILE).read_bytes(), type=_Saved)
        except (OSError, ValueError):
            return None
