"""Runs requests with media through an engine: a random Llama and a test tower."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scheduled_requests import poison_caches

from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.media.prompt_media import kinds_of
from penstock.engine.types import EngineInfo, MediaItem, TokenRequest
from penstock.models.families import registry
from penstock.models.hub.sources import files_at
from penstock.models.media.prepared import MediaKind
from penstock.runtime import CpuRuntime, Runtime, start_runtime
from penstock.runtime.media import TowerMedia
from penstock.scheduler import Scheduler
from tests.support.checkpoints.small_llama import CONTEXT, HEAD_DIM, VOCAB, WIDTH, write_small_llama
from tests.support.noise_towers import NoiseTower, item, picture

BLOCK, ROWS = 16, 6
PLACEHOLDER = 7
SECTIONS = (HEAD_DIM // 2 - 4, 2, 2)


def start_with_tower(
    folder: Path,
    tower: NoiseTower,
    *,
    axes: int = 1,
    available: int | None = None,
    **options: Any,
) -> CpuRuntime:
    """Start the small Llama with `tower`. `axes`: 3 for three positions per token. `available`:
    bytes of memory."""
    write_base(folder, axes)
    settings = EngineSettings(
        model=str(folder),
        **{
            "max_model_len": CONTEXT,
            "max_num_seqs": ROWS,
            "max_num_batched_tokens": CONTEXT,
            "block_size": BLOCK,
            "threads": 2,
        }
        | options,
    )
    with pytest.MonkeyPatch.context() as patch:
        family = tower.family("LlamaForCausalLM")
        patch.setitem(registry.MEDIA_FAMILIES, "LlamaForCausalLM", family)
        started = start_runtime(files_at(folder, "small-llama"), settings, available)
    assert isinstance(started, CpuRuntime)
    return started


def write_base(folder: Path, axes: int) -> None:
    """Write the small Llama with a processor. `axes`: 3 for three positions per token."""
    write_small_llama(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    if axes == 3:
        config = json.loads((folder / "config.json").read_text())
        config["rope_scaling"] = {"rope_type": "default", "mrope_section": SECTIONS}
        (folder / "config.json").write_text(json.dumps(config))


def core_over(
    runtime: Runtime,
    cache_bytes: int = 1 << 20,
    clock: Callable[[], float] | None = None,
    lora: LoraSettings | None = None,
    **options: Any,
) -> EngineCore:
    """Return a new engine over `runtime`. A runtime with its own towers forgets its encoded items;
    one of several ranks must be new. `options` are those of the scheduler."""
    facts = runtime.info
    assert runtime.media is not None
    sizes = {
        "num_blocks": facts.cache_blocks,
        "block_size": facts.block_size,
        "max_model_len": facts.max_model_len,
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": facts.max_model_len,
        "tells_prompts_apart": facts.tells_prompts_apart,
    }
    info = EngineInfo(
        model_id="m",
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        max_num_seqs=ROWS,
        cache_blocks=facts.cache_blocks,
        block_size=facts.block_size,
        weight_bytes=0,
        fingerprint="",
        media_kinds=kinds_of(runtime.media),
    )
    if isinstance(runtime.media, TowerMedia):
        runtime.media.encoded.clear()
    timed = {} if clock is None else {"clock": clock}
    scheduler = Scheduler(**(sizes | options))
    return EngineCore(runtime, scheduler, info, lora=lora, encoder_cache_bytes=cache_bytes, **timed)


def media_request(
    id: str,
    *parts: tuple[int, ...] | MediaItem,
    max_tokens: int = 12,
    axes: int = 1,
    **options: Any,
) -> TokenRequest:
    """Return a request for a prompt of `parts`: tokens, and media at any `start`, which is replaced
    by their place. With three axes, the rows of an item are two columns wide."""
    tokens: list[int] = []
    media: list[MediaItem] = []
    positions: list[tuple[int, int, int]] = []
    for part in parts:
        begin = 1 + max(map(max, positions), default=-1)
        if isinstance(part, tuple):
            tokens += part
            positions += [(begin + i,) * 3 for i in range(len(part))]
            continue
        ((margin, _),) = part.runs
        media.append(item(part.media, len(tokens), margin=margin, whole=part.whole))
        tokens += [PLACEHOLDER] * part.length
        positions += [(begin, begin + i // 2, begin + i % 2) for i in range(part.length)]
    rope = np.array(positions, np.int32).T.tobytes() if axes == 3 else b""
    sampling = options.pop("sampling", Sampling(temperature=0.0))
    return TokenRequest(
        id,
        tuple(tokens),
        sampling,
        3,
        max_tokens,
        media=tuple(media),
        rope_positions=rope,
        **({"top_logprobs": 2} | options),
    )


def words(count: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(8, VOCAB, count).tolist())


def image(
    content: str,
    rows: int = 12,
    margin: int = 1,
    *,
    pieces: int = 1,
    whole: bool = False,
    kind: MediaKind = "image",
) -> MediaItem:
    return item(picture(content, rows, pieces, kind), 0, margin=margin, whole=whole)


@dataclass
class Answer:
    """The answer to a request: its tokens with log-probabilities, and the scored prompt."""

    tokens: list[Any] = field(default_factory=list)
    prompt: list[Any] = field(default_factory=list)
    cached_tokens: int = 0
    finish: str | None = None
    error: str | None = None


def run(core: EngineCore, requests: list[TokenRequest]) -> dict[str, Answer]:
    """Submit all requests at once and step until all are finished."""
    answers = {request.id: Answer() for request in requests}
    for request in requests:
        core.submit(request)
    while core.has_work:
        for output in core.step():
            answer = answers[output.id]
            assert answer.finish is None, "an output after the last"
            answer.tokens += output.tokens
            answer.prompt += output.prompt
            answer.cached_tokens += output.cached_tokens or 0
            answer.finish, answer.error = output.finish, output.error
    assert all(answer.finish is not None for answer in answers.values())
    return answers


def poison(runtime: CpuRuntime) -> None:
    """Fill the KV cache with NaN, so that whatever is read before it is written shows."""
    poison_caches(runtime._backend.caches)  # type: ignore[attr-defined]


def bits(answers: dict[str, Answer]) -> dict[str, tuple[list[Any], list[Any]]]:
    return {id: (answer.tokens, answer.prompt) for id, answer in answers.items()}


__all__ = ["WIDTH", "Answer", "bits", "core_over", "image", "media_request", "poison", "run"]
