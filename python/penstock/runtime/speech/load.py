"""Loads the speech model in a model's files."""

from __future__ import annotations

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.speech.speech_files import kokoro_files, transformers_weights
from penstock.runtime.speech.speaker import Speaker, memory_bytes


def load_speaker(
    files: ModelFiles, settings: EngineSettings, available: int | None = None
) -> Speaker:
    """Return the speech model in `files`. `available`: bytes of memory that it must fit, None for
    no check. Raises ModelError if it cannot be read, does not fit, or needs packages that are not
    installed."""
    needed = memory_bytes(_weight_bytes(files))
    if available is not None and needed > available:
        raise ModelError(
            f"the model does not fit: it needs {needed / 2**20:,.0f} MiB, but"
            f" {available / 2**20:,.0f} MiB are available"
        )
    return _load(files, settings)


def _weight_bytes(files: ModelFiles) -> int:
    if files.path.is_file():
        return files.path.stat().st_size
    kokoro = kokoro_files(files.path)
    weights = [kokoro.model] if kokoro is not None else transformers_weights(files.path)
    return sum(path.stat().st_size for path in weights)


def _load(files: ModelFiles, settings: EngineSettings) -> Speaker:
    # Each library is imported only for the models that need it.
    if files.kind == "folder":
        try:
            from penstock.runtime.speech.transformers_speech import load_transformers_speaker
        except ImportError as error:
            raise ModelError(
                "this speech model needs more packages: pip install 'penstock[speech-torch]'"
                f" ({error})"
            ) from None
        return load_transformers_speaker(files, settings)
    kokoro = kokoro_files(files.path) if files.path.is_dir() else None
    if kokoro is not None:
        from penstock.runtime.speech.kokoro import Kokoro

        return Kokoro(kokoro, files.model_id, fingerprint(files), settings.threads)
    from penstock.runtime.speech.piper import Piper

    return Piper(files.path, files.model_id, fingerprint(files), settings.threads)
