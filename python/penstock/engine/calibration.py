"""Collects the importance matrix of a model from chunks of a text, without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.load import load_core
from penstock.engine.protocol import Core
from penstock.engine.types import TokenRequest
from penstock.kernels.column_squares import Squares
from penstock.quant.importance import CHUNK_SIZE, ImportanceMatrix

Progress = Callable[[int, int], None]
"""Called with the number of chunks that are computed and the number of all chunks."""


def importance_of_text(
    settings: EngineSettings,
    chunks: Sequence[Sequence[int]],
    dataset: str,
    progress: Progress = lambda done, total: None,
) -> ImportanceMatrix:
    """Load the model that `settings` names on the CPU, compute `chunks` of token ids, each by
    itself, and return the importance matrix.

    `dataset`: the name of the text, for the file. Raises ModelError if the model cannot be loaded
    or is of a kind whose inputs are not collected.
    """
    longest = max(map(len, chunks), default=0)
    core = load_core(_for_calibration(settings, longest))
    try:
        return importance_of_chunks(core, chunks, dataset, progress)
    finally:
        core.close()


def importance_of_chunks(
    core: Core,
    chunks: Sequence[Sequence[int]],
    dataset: str,
    progress: Progress = lambda done, total: None,
) -> ImportanceMatrix:
    """Do the same as `importance_of_text` with a loaded model, which computes nothing else
    meanwhile."""
    live = core.live_weights if isinstance(core, EngineCore) else None
    if live is None:
        raise ModelError("an importance matrix needs a model that generates text on the CPU")
    squares: Squares = {}
    live.collect(squares)
    try:
        for number, chunk in enumerate(chunks):
            core.submit(chunk_request(f"calibration-{number}", chunk))
            while core.has_work:
                core.step()
            progress(number + 1, len(chunks))
    finally:
        live.collect(None)
    size = max(map(len, chunks), default=CHUNK_SIZE)
    return live.importance(squares, (dataset,), len(chunks), size)


def chunks_of(
    tokens: Sequence[int], size: int = CHUNK_SIZE, first: Sequence[int] = ()
) -> list[list[int]]:
    """Return whole chunks of `size` tokens of a text. Each starts with the tokens `first`, which
    replace none of the text."""
    step = size - len(first)
    whole = len(tokens) // step * step
    return [[*first, *tokens[at : at + step]] for at in range(0, whole, step)]


def chunk_request(id: str, tokens: Sequence[int]) -> TokenRequest:
    """Return the request that computes one chunk and samples nothing. Its prefix is shared with no
    other request, so that all of its tokens are computed."""
    return TokenRequest(
        id=id,
        token_ids=tuple(tokens),
        sampling=Sampling(),
        seed=0,
        max_tokens=0,
        cache_salt=f"penstock {id}".encode(),
    )


def _for_calibration(settings: EngineSettings, longest: int) -> EngineSettings:
    """Return settings for one chunk at a time on the CPU, with the weights of the file."""
    return msgspec.structs.replace(
        settings,
        device="cpu",
        quantization=None,
        max_model_len=max(longest, 16),
        max_num_seqs=1,
        max_num_batched_tokens=max(longest, 16),
        enable_prefix_caching=False,
        lora=None,
        draft_model=None,
        speculative_algorithm="none",
    )
