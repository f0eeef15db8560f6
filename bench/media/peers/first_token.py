"""Time to the first token of a prompt with an image, on engines that take turns."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from bench.media.peers.engines import Engine

Message = dict[str, Any]

TURNS: Final = {
    "first": "a new image",
    "second": "the next turn of the same conversation",
    "elsewhere": "the same image in another conversation",
}
"""The requests of a round, in order."""


def measure(engines: Sequence[Engine], size: tuple[int, int], rounds: int) -> list[dict[str, Any]]:
    """Return for each engine and turn the least CPU seconds and wall seconds of `rounds` rounds,
    after one that is not counted. `size`: (width, height) of the images; each round has its own.
    """
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    tokens: dict[tuple[str, str], Any] = {}
    for count in range(rounds + 1):
        for turn, messages in _round(_picture(count, *size)):
            for engine in engines:
                key = engine.name, turn
                cpu, wall, answer = _timed(engine, messages)
                tokens[key] = answer.get("usage", {}).get("prompt_tokens")
                if count:
                    found.setdefault(key, []).append((cpu, wall))
    return [
        {
            "engine": name,
            "turn": turn,
            "cpu_s": round(min(cpu for cpu, _ in times), 3),
            "wall_s": round(min(wall for _, wall in times), 3),
            "prompt_tokens": tokens[name, turn],
        }
        for (name, turn), times in found.items()
    ]


def table(rows: Sequence[dict[str, Any]], own: str) -> str:
    """Return the rows as a Markdown table, one line per turn; ratios are to the engine `own`."""
    names = list(dict.fromkeys(row["engine"] for row in rows))
    peers = [name for name in names if name != own]
    titles = [own, *(text for peer in peers for text in (peer, "times faster"))]
    lines = [f"| turn | tokens | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    for turn in TURNS:
        of = {row["engine"]: row for row in rows if row["turn"] == turn}
        ours = of[own]["cpu_s"]
        cells = [f"{ours:.2f}"]
        for peer in peers:
            theirs = of[peer]["cpu_s"]
            cells += [f"{theirs:.2f}", f"{theirs / ours:.2f}" if ours else "-"]
        lines.append(f"| {turn} | {of[own]['prompt_tokens']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _timed(engine: Engine, messages: Sequence[Message]) -> tuple[float, float, dict[str, Any]]:
    """Return the CPU seconds, the wall seconds and the answer of one token."""
    body = {"model": "default", "messages": messages, "max_tokens": 1, "temperature": 0.0}
    cpu, wall = engine.cpu_s(), time.perf_counter()
    answer = engine.ask(body)
    return engine.cpu_s() - cpu, time.perf_counter() - wall, answer


def _round(url: str) -> list[tuple[str, list[Message]]]:
    image: Message = {"type": "image_url", "image_url": {"url": url}}
    question: Message = {"role": "user", "content": [image, _say("What is on the picture?")]}
    more: list[Message] = [
        {"role": "assistant", "content": [_say("A picture.")]},
        {"role": "user", "content": [_say("Tell me more.")]},
    ]
    other = {"role": "user", "content": [_say("Look at this."), image, _say("Is it green?")]}
    return [("first", [question]), ("second", [question, *more]), ("elsewhere", [other])]


def _say(text: str) -> Message:
    return {"type": "text", "text": text}


def _picture(seed: int, width: int, height: int) -> str:
    """Return an image of squares of random colours as a data URL with a PNG."""
    from PIL import Image

    source = np.random.default_rng(seed)
    small = source.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), np.uint8)
    pixels = np.repeat(np.repeat(small, 16, 0), 16, 1)[:height, :width]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
