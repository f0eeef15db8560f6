"""A backend without a model: its cache holds digests of prefixes, its logits are one-hot.

It reads the arrays that a kernel reads (slots, block tables, context lengths), so a wrong input
changes the sampled tokens. The scheduler's fake does the same above the row table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import StepInputs

VOCAB = 64
_MASK = (1 << 61) - 1
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def mix(before: int, token: int) -> int:
    return ((before ^ (token + 1)) * 0x9E3779B97F4A7C15 + 12345) & _MASK


def next_token(state: int) -> int:
    return (state >> 17) % VOCAB


def answer_alone(prompt: list[int], count: int) -> list[int]:
    state = 0
    for token in prompt:
        state = mix(state, token)
    answer = []
    for _ in range(count):
        answer.append(next_token(state))
        state = mix(state, answer[-1])
    return answer


class FakeBackend:
    weight_bytes = 0
    buffer_bytes = 0
    adapters = None

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.cache = np.full(num_blocks * block_size, -1, np.int64)
        self.block_size = block_size
        self.poisoned: set[int] = set()
        self.last_sampling: SamplingRows | None = None
        self.closed = False

    def logits(self, inputs: StepInputs[Ints]) -> Floats:
        for array in (inputs.tokens, inputs.slots, inputs.block_tables, inputs.sample_rows):
            assert array.dtype == np.int32 and array.flags.c_contiguous
        states = np.zeros(len(inputs.tokens), np.int64)
        for row, context in enumerate(inputs.context_lens.tolist()):
            begin, end = inputs.query_starts[row : row + 2].tolist()
            table = inputs.block_tables[row]
            for index in range(begin, end):
                position = int(inputs.positions[index])
                assert position == context - (end - index)
                state = 0
                if position:
                    block, offset = divmod(position - 1, self.block_size)
                    state = int(self.cache[int(table[block]) * self.block_size + offset])
                    assert state >= 0, "reads a place that nothing was written to"
                states[index] = mix(state, int(inputs.tokens[index]))
                self.cache[inputs.slots[index]] = states[index]
        logits = np.zeros((len(inputs.sample_rows), VOCAB), np.float32)
        for sample, index in enumerate(inputs.sample_rows):
            logits[sample, next_token(int(states[index]))] = 10.0
            if int(inputs.tokens[index]) in self.poisoned:
                logits[sample] = np.nan
        return logits

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        self.last_sampling = rows
        failed = ~np.isfinite(logits).all(axis=1)
        tokens = np.where(failed, -1, logits.argmax(axis=1)).astype(np.int32)
        return tokens

    def top_logprobs(
        self, logits: Floats, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        scores = logits[rows] - np.log(np.exp(logits[rows]).sum(axis=1, keepdims=True))
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count].astype(np.int32)
        return (
            scores[np.arange(len(rows)), tokens],
            best,
            np.take_along_axis(scores, best, axis=1),
        )

    def close(self) -> None:
        self.closed = True
