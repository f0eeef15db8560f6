"""Computes the importance matrix of a model over a text."""

from __future__ import annotations

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.engine.calibration import chunks_of, importance_of_text
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_text_parts
from penstock.quant.importance import CHUNK_SIZE, ImportanceMatrix
from penstock.quantizing.gguf_output import Progress
from penstock.text import load_tokenizer

_MAX_CHARACTERS_PER_TOKEN = 8


def importance_over(
    files: ModelFiles, text: str, chunks: int, dataset: str, progress: Progress
) -> ImportanceMatrix:
    """Compute the importance matrix over the first chunks of a text. `progress`: called with the
    tokens that are computed, and with all. Raises ModelError if the text makes no whole chunk or
    the inputs of the model are not collected."""
    parts = load_text_parts(files)
    tokens = load_tokenizer(parts).encode(text[: chunks * CHUNK_SIZE * _MAX_CHARACTERS_PER_TOKEN])
    each = chunks_of(tokens)[:chunks]
    if not each:
        raise ModelError(f"{dataset}: the text has {len(tokens)} tokens, a chunk has {CHUNK_SIZE}")
    settings = EngineSettings(model=str(files.path))
    return importance_of_text(
        settings,
        each,
        dataset,
        lambda done, total: progress(done * CHUNK_SIZE, total * CHUNK_SIZE),
    )
