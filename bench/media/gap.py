"""Time between the tokens of streams, alone and while images arrive.

The engine runs in this process, without HTTP. Images arrive one after another: the next one when
the answer to the last one is complete. Encoding pauses every 25 steps for 25 steps, whose gaps are
those of the streams alone: so other work on the machine disturbs both alike. The `cpu` clock counts
the CPU seconds of one thread; the engine measures its steps with the same clock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import MediaItem, TokenRequest
from penstock.models.loader.media import media_spec
from penstock.models.media.processor import MediaProcessor, PlacedMedia
from penstock.runtime.load import find_files, start_runtime
from penstock.runtime.protocol import Runtime

CLOCKS: Final[dict[str, Callable[[], float]]] = {"cpu": time.process_time, "wall": time.monotonic}
ANSWER_TOKENS: Final = 4
BLOCK_STEPS: Final = 25
PROMPT_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a measurement.

    - `size`: (height, width) of the images.
    - `images`: how many arrive beside the streams.
    - `streams`: numbers of streams to measure with.
    - `most_steps`: an image that is not encoded after this number of steps is given up;
      0: none is.
    """

    size: tuple[int, int]
    images: int
    streams: tuple[int, ...]
    most_steps: int
    clock: str
    threads: int | None


@dataclass
class Gaps:
    """Seconds between the tokens of streams: alone, while an image is encoded, and while the prompt
    of an image is prefilled or its answer decoded. `first_s`: seconds to the first token of each
    image's answer, without the pauses."""

    alone: list[float] = field(default_factory=list)
    encoding: list[float] = field(default_factory=list)
    answering: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


class Loop:
    """An engine, stepped by hand."""

    def __init__(self, runtime: Runtime, settings: EngineSettings, options: Options) -> None:
        self._clock = CLOCKS[options.clock]
        self._core = EngineCore.for_runtime(runtime, settings, self._clock)
        self._last: dict[str, float] = {}
        self._ids = itertools.count()

    def stream(self) -> None:
        """Start a stream that goes on until the end of the context."""
        prompt = np.random.default_rng(next(self._ids)).integers(100, 1000, PROMPT_TOKENS)
        room = self._core.info.max_model_len - PROMPT_TOKENS
        self._submit(tuple(prompt.tolist()), (), room)

    def pause(self, steps: int) -> list[float]:
        """Compute steps of the streams without encoding. Return the gaps."""
        queue, self._core._media = self._core._media, None
        gaps = [gap for _ in range(steps) for gap in self._step()[0]]
        self._core._media = queue
        return gaps

    def image(self, prompt: tuple[int, ...], item: MediaItem, most_steps: int, found: Gaps) -> None:
        """Answer an image and note the gaps of the streams. See `Options.most_steps`."""
        own, began = self._submit(prompt, (item,), ANSWER_TOKENS), self._clock()
        queue = self._core._media
        assert queue is not None, "the model reads images"
        answered = steps = 0
        while answered < ANSWER_TOKENS:
            steps += 1
            encodes = queue.has_work
            if encodes and steps == most_steps:
                self._core.abort(own)
                return
            if encodes and self._last and not steps % BLOCK_STEPS:
                paused = self._clock()
                found.alone += self.pause(BLOCK_STEPS)
                began += self._clock() - paused
            gaps, tokens = self._step(own)
            (found.encoding if encodes else found.answering).extend(gaps)
            if tokens and not answered:
                found.first_s.append(self._clock() - began)
            answered += tokens

    def end(self) -> None:
        """Abort the streams."""
        for id in self._last:
            self._core.abort(id)
        self._last.clear()

    def _step(self, own: str = "") -> tuple[list[float], int]:
        """Return the gaps of the streams that got a token, and the number of tokens of `own`."""
        outputs, now = self._core.step(), self._clock()
        gaps, tokens = [], 0
        for output in outputs:
            if output.id == own:
                tokens += len(output.tokens)
                continue
            if output.id in self._last:
                gaps.append(now - self._last[output.id])
            self._last[output.id] = now
        return gaps, tokens

    def _submit(self, prompt: tuple[int, ...], media: tuple[MediaItem, ...], tokens: int) -> str:
        id = str(next(self._ids))
        greedy = Sampling(temperature=0.0)
        self._core.submit(TokenRequest(id, prompt, greedy, 0, tokens, media=media))
        return id


def measure(model: str, options: Options) -> dict[str, Any]:
    """Return the gaps in milliseconds, and the seconds to the first token of an image's answer, for
    each number of streams and for none."""
    settings = EngineSettings(model=model, threads=options.threads)
    files, available = find_files(settings)
    spec = media_spec(files)
    assert spec is not None, "the model reads images"
    runtime = start_runtime(files, settings, available)
    pictures = _pictures(spec.processor, options.size)
    try:
        rows = [_row(runtime, settings, options, count, pictures) for count in options.streams]
    finally:
        runtime.close()
    return {"clock": options.clock, "threads": options.threads, "rows": rows}


def _row(
    runtime: Runtime,
    settings: EngineSettings,
    options: Options,
    streams: int,
    pictures: Iterator[tuple[tuple[int, ...], MediaItem]],
) -> dict[str, Any]:
    loop = Loop(runtime, settings, options)
    # Prepared before the streams start: a server prepares them in other processes.
    arrivals = list(itertools.islice(pictures, options.images if streams else 1))
    for _ in range(streams):
        loop.stream()
    loop.pause(BLOCK_STEPS)  # the prompts, and the first steps
    found = Gaps()
    for prompt, item in arrivals:
        loop.image(prompt, item, options.most_steps, found)
    loop.end()
    return {
        "streams": streams,
        "alone_ms": _percentiles(found.alone),
        "encoding_ms": _percentiles(found.encoding),
        "answering_ms": _percentiles(found.answering),
        "first_token_s": [round(one, 2) for one in found.first_s],
    }


def _pictures(
    processor: MediaProcessor, size: tuple[int, int]
) -> Iterator[tuple[tuple[int, ...], MediaItem]]:
    """Yield prompts with an image each, and the image."""
    for seed in itertools.count():
        source = np.random.default_rng(seed)
        small = source.integers(0, 256, (size[0] // 16, size[1] // 16, 3), np.uint8)
        media = processor.image(np.repeat(np.repeat(small, 16, 0), 16, 1))
        expansion = processor.expand(media, lambda text: [len(text)])
        tokens = list(expansion.token_ids)
        place = PlacedMedia(media, expansion, 0)
        assert processor.rope_positions([*tokens, 1], [place]) is None, "the text rotates by index"
        yield (
            (*(max(token, 0) for token in tokens), 1),
            MediaItem(media.digest(), media, 0, len(tokens), expansion.runs, expansion.whole),
        )


def _percentiles(gaps: list[float]) -> dict[str, float]:
    if not gaps:
        return {"count": 0}
    p50, p99, most = (1000 * float(np.percentile(gaps, each)) for each in (50, 99, 100))
    return {"count": len(gaps), "p50": round(p50, 2), "p99": round(p99, 2), "most": round(most, 2)}


def _cell(gaps: dict[str, float]) -> str:
    return f"{gaps['p50']} / {gaps['p99']}" if gaps["count"] else "-"


def table(result: dict[str, Any]) -> str:
    """Return the figures as a Markdown table."""
    lines = [
        "| streams | alone p50 / p99, ms | while images are encoded | ratio of p99 |"
        " while their prompts are computed | first token of an image, s |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        alone, encoding = row["alone_ms"], row["encoding_ms"]
        ratio = f"{encoding['p99'] / alone['p99']:.2f}" if row["streams"] else "-"
        cells = [_cell(row[name]) for name in ("alone_ms", "encoding_ms", "answering_ms")]
        first = ", ".join(map(str, row["first_token_s"]))
        lines.append(
            f"| {row['streams']} | {cells[0]} | {cells[1]} | {ratio} | {cells[2]} | {first} |"
        )
    return "\n".join(lines)
