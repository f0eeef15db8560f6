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

    `figure` is the main figure of the workload; the others are reported too. The first `shared`
    tokens are the same in all prompts of a run, and in the server's prefix cache if it has one.
    """

    name: str
    concurrency: int
    prompt: int
    new: int
    figure: Figure
    shared: int = 0


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
    Workload("decode-at-32k", 1, 32_000, 64, "decode_tok_s"),
)
PREFIX_HITS = (
    Workload("prefix-hit-8k", 1, 8100, 64, "prompt_tok_s", shared=8000),
    Workload("prefix-hits-2k", 8, 2048, 64, "prompt_tok_s", shared=2000),
    Workload("prefix-hit-32k", 1, 32_000, 64, "prompt_tok_s", shared=31_900),
)
ALL = {workload.name: workload for workload in STANDARD + LONG + PREFIX_HITS}


class Prompts:
    """Random prompts, the same ones for every server of a run. They have no common prefixes, except
    the shared one of their workload."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._shared: dict[str, list[int]] = {}

    def take(self, workload: Workload) -> list[list[int]]:
        own = workload.prompt - workload.shared
        shared = self._shared_tokens(workload)
        return [
            shared + self._random.choices(VOCABULARY, k=own) for _ in range(workload.concurrency)
        ]

    def _shared_tokens(self, workload: Workload) -> list[int]:
        """Return the tokens with which all prompts of a workload begin."""
        if workload.name not in self._shared:
            made = self._random.choices(VOCABULARY, k=workload.shared)
            self._shared[workload.name] = made
        return self._shared[workload.name]
