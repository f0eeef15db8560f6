"""Decodes windows with a transcription runtime, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.models.hub.model_files import ModelFiles
from penstock.models.media.prepared import PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.whisper.loader import load_whisper
from penstock.runtime.cpu.transcription import start_native_transcription
from penstock.runtime.transcription import TranscriptionRuntime
from penstock.scheduler.types import Admit, AppendBlocks, Chunk, MediaRun, StepPlan

GREEDY = Sampling(temperature=0.0)


def start_runtime(folder: Path, **settings: object) -> TranscriptionRuntime:
    """Return the runtime of the model in `folder`, with a float32 cache."""
    chosen = {"model": str(folder), "kv_cache_dtype": "f32", "threads": 2, **settings}
    engine = EngineSettings(**chosen)
    model = load_whisper(ModelFiles("whisper", "folder", folder), engine.dtype)
    return start_native_transcription(model, engine)


def encode(runtime: TranscriptionRuntime, media: PreparedMedia) -> np.ndarray:
    """Encode a window and keep it in the runtime. Return its rows."""
    assert runtime.media is not None
    steps = runtime.media.encode(media, PieceBudget())
    while True:
        try:
            next(steps)
        except StopIteration as done:
            runtime.media.keep(media.digest(), done.value)
            return done.value.rows.reshape(-1, runtime.width)


def decode(
    runtime: TranscriptionRuntime,
    windows: Sequence[PreparedMedia],
    prompts: Sequence[Sequence[int]],
    count: int,
) -> list[list[int]]:
    """Return the first `count` greedy tokens for each window after its prompt, decoded as one
    batch."""
    blocks = -(-max(map(len, prompts)) // 16) + -(-count // 16) + 1
    admissions = tuple(
        Admit(
            row=row,
            token_ids=tuple(prompt),
            prompt_tokens=len(prompt),
            sampling=GREEDY,
            seed=0,
            top_logprobs=None,
            media=(MediaRun(0, 1, window.digest()),),
        )
        for row, (window, prompt) in enumerate(zip(windows, prompts, strict=True))
    )
    appended = tuple(
        AppendBlocks(row, tuple(range(row * blocks, (row + 1) * blocks)))
        for row in range(len(prompts))
    )
    chunks = tuple(Chunk(row, 0, len(prompt), True) for row, prompt in enumerate(prompts))
    plan = StepPlan(0, (), admissions, appended, chunks)
    said: list[list[int]] = [[] for _ in prompts]
    for step in range(count):
        for one in runtime.execute(plan).sampled:
            said[one.row].append(one.token_id)
        chunks = tuple(
            Chunk(row, len(prompt) + step, 1, True) for row, prompt in enumerate(prompts)
        )
        plan = StepPlan(step + 1, (), (), (), chunks)
    return said
