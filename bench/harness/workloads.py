"""The workloads of every server: bursts of requests of exact token length, greedy, EOS ignored."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

VOCABULARY = range(1000, 30_000)  # ordinary text tokens in every vocabulary measured here

Figure = Literal["prompt_tok_s", "decode_tok_s", "out_tok_s"]


@dataclass(frozen=True)
class Workload:
    """`concurrency` requests that start at once, each with `prompt` tokens in and `new` tokens out.

    `figure` is the main figure of the workload; the others are reported too.
    """

    name: str
    concurrency: int
    prompt: int
    new: int
    figure: Figure


STANDARD = (
    Workload("prefill-512", 1, 512, 1, "prompt_tok_s"),
    Workload("decode-1", 1, 32, 128, "decode_tok_s"),
    Workload("decode-8", 8, 32, 128, "out_tok_s"),
    Workload("decode-16", 16, 32, 128, "out_tok_s"),
    Workload("decode-32", 32, 32, 128, "out_tok_s"),
    Workload("mixed-16", 16, 512, 128, "out_tok_s"),
)
LONG = (
    Workload("decode-at-2k", 1, 1984, 64, "decode_tok_s"),
    Workload("decode-at-8k", 1, 8100, 64, "decode_tok_s"),
)
ALL = {workload.name: workload for workload in STANDARD + LONG}


class Prompts:
    """Random prompts without common prefixes, the same ones for every server of a run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def take(self, workload: Workload) -> list[list[int]]:
        return [
            self._random.choices(VOCABULARY, k=workload.prompt) for _ in range(workload.concurrency)
        ]
