"""The CPU sampler: turns the logits of a step into tokens, verifies drafts, scores prompts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.runtime.backend import Floats, Ints, SamplingOps
from penstock.runtime.min_tokens import FilledMasks
from penstock.runtime.protocol import Masks
from penstock.runtime.row_table import RowTable
from penstock.scheduler.types import Chunk, SampledToken, Scored, StepPlan, StepResult

Logprobs = tuple[float, tuple[tuple[int, float], ...]]


class Sampler:
    """Samples with `ops` and appends the sampled tokens to `rows`."""

    def __init__(self, rows: RowTable, ops: SamplingOps) -> None:
        self._rows = rows
        self._ops = ops

    def finish(self, plan: StepPlan, logits: Floats, masks: Masks | None) -> StepResult:
        """Return the result of a step from its `logits` [S, V]: first those of the sampled places
        (prefill chunks that do not complete their prompt have none), then those of the positions to
        be scored."""
        sampled = [chunk for chunk in plan.chunks if chunk.samples]
        num_sampled = sum(1 + len(chunk.draft_tokens) for chunk in sampled)
        scored: tuple[Scored, ...] = ()
        if len(logits) > num_sampled:
            scored = self._score(plan.chunks, logits[num_sampled:])
            logits = logits[:num_sampled]
        if not sampled:
            return StepResult(plan.step, (), scored)
        found = None if masks is None else masks.wait()
        if any(chunk.draft_tokens for chunk in sampled):
            return StepResult(plan.step, self._verify(sampled, logits, found), scored)
        rows = [chunk.row for chunk in sampled]
        return StepResult(plan.step, self._sample_and_append(rows, logits, found), scored)

    def _score(self, chunks: tuple[Chunk, ...], logits: Floats) -> tuple[Scored, ...]:
        """Score prompts: return the log-probability of the known token after each position of
        `logits`."""
        asked = [chunk for chunk in chunks if chunk.num_scores]
        rows = [chunk.row for chunk in asked for _ in range(chunk.num_scores)]
        assert len(rows) == len(logits)
        tokens = np.concatenate(
            [self._rows.tokens_after(chunk.row, chunk.score_from, chunk.num_scores)
             for chunk in asked]
        )  # fmt: skip
        counts = [self._rows.prompt_logprobs[row] or 0 for row in rows]
        found = self._best(logits, np.arange(len(rows), dtype=np.int32), tokens, counts)
        return tuple(
            Scored(row, token, *logprobs)
            for row, token, logprobs in zip(rows, tokens.tolist(), found, strict=True)
        )

    def _verify(
        self, chunks: list[Chunk], logits: Floats, masks: FilledMasks | None
    ) -> tuple[SampledToken, ...]:
        """Sample at every place of chunks with draft tokens. Keep the accepted draft tokens and the
        token after them."""
        if any(self._rows.has_state(chunk.row) for chunk in chunks):
            return self._verify_in_turn(chunks, logits, masks)
        counts = [1 + len(chunk.draft_tokens) for chunk in chunks]
        rows = [
            chunk.row for chunk, count in zip(chunks, counts, strict=True) for _ in range(count)
        ]
        ahead = np.concatenate([np.arange(count) for count in counts])
        token_ids = self._sample(rows, logits, masks, ahead)
        kept: list[int] = []
        begin = 0
        for chunk, count in zip(chunks, counts, strict=True):
            sampled_tokens = token_ids[begin : begin + count].tolist()
            accepted = [
                token == draft
                for token, draft in zip(sampled_tokens, chunk.draft_tokens, strict=False)
            ]
            end = accepted.index(False) + 1 if False in accepted else count
            self._rows.extend(chunk.row, sampled_tokens[:end])
            kept += range(begin, begin + end)
            begin += count
        return self._sampled_tokens([rows[index] for index in kept], logits, token_ids[kept], kept)

    def _verify_in_turn(
        self, chunks: list[Chunk], logits: Floats, masks: FilledMasks | None
    ) -> tuple[SampledToken, ...]:
        """Verify drafts place by place over all rows, because a logits processor depends on the
        tokens sampled before."""
        starts = np.cumsum([0, *(1 + len(chunk.draft_tokens) for chunk in chunks)])
        sampled_tokens: list[list[SampledToken]] = [[] for _ in chunks]
        left, place = list(range(len(chunks))), 0
        while left:
            index = starts[left] + place
            own = None if masks is None else (masks[0], masks[1][index])
            rows = [chunks[chunk].row for chunk in left]
            for chunk, one in zip(
                left, self._sample_and_append(rows, logits[index], own), strict=True
            ):
                sampled_tokens[chunk].append(one)
            left = [
                chunk
                for chunk in left
                if chunks[chunk].draft_tokens[place : place + 1]
                == (sampled_tokens[chunk][-1].token_id,)
            ]
            place += 1
        return tuple(one for row in sampled_tokens for one in row)

    def _sample_and_append(
        self, sampled: list[int], logits: Floats, masks: FilledMasks | None
    ) -> tuple[SampledToken, ...]:
        """Sample a token for each of the rows `sampled` and append it to the row."""
        token_ids = self._sample(sampled, logits, masks)
        self._rows.append(sampled, token_ids)
        return self._sampled_tokens(sampled, logits, token_ids)

    def _sample(
        self,
        sampled: list[int],
        logits: Floats,
        masks: FilledMasks | None,
        ahead: npt.NDArray[np.intp] | None = None,
    ) -> Ints:
        rows = self._rows.sampling(sampled, ahead)
        masks = self._rows.apply_min_tokens(sampled, ahead, masks, logits.shape[1])
        if masks is not None:
            rows = replace(rows, masks=masks[0], mask_of=masks[1])
        return self._ops.sample(logits, rows)

    def _sampled_tokens(
        self,
        sampled: list[int],
        logits: Floats,
        token_ids: Ints,
        places: list[int] | None = None,
    ) -> tuple[SampledToken, ...]:
        """Return `token_ids[i]` of row `sampled[i]`, with log-probabilities from the logits at
        `places[i]`, or at i."""
        logprobs = self._logprobs(sampled, logits, token_ids, places)
        sampled_tokens = []
        for index, (row, token_id) in enumerate(zip(sampled, token_ids.tolist(), strict=True)):
            if token_id < 0:  # the row is released before its appended token is read
                sampled_tokens.append(SampledToken(row, token_id, failed=True))
            elif index in logprobs:
                sampled_tokens.append(SampledToken(row, token_id, *logprobs[index]))
            else:
                sampled_tokens.append(SampledToken(row, token_id))
        return tuple(sampled_tokens)

    def _logprobs(
        self, sampled: list[int], logits: Floats, token_ids: Ints, places: list[int] | None
    ) -> dict[int, Logprobs]:
        """Return the log-probabilities of rows that request them and got a token, by index in
        `sampled`."""
        counts = {
            index: count
            for index, row in enumerate(sampled)
            if (count := self._rows.top_logprobs[row]) is not None and token_ids[index] >= 0
        }
        if not counts:
            return {}
        asked = np.array(list(counts), np.int32)
        at = asked if places is None else np.array(places, np.int32)[asked]
        found = self._best(logits, at, token_ids[asked], list(counts.values()))
        return dict(zip(counts, found, strict=True))

    def _best(self, logits: Floats, at: Ints, tokens: Ints, counts: list[int]) -> list[Logprobs]:
        """Return for the logits at places `at`: the log-probability of token i, and the best
        `counts[i]` tokens that can be sampled."""
        own, ids, values = self._ops.top_logprobs(logits, at, tokens, max(counts))
        best = [
            [pair for pair in zip(*row, strict=True) if pair[1] > -math.inf]
            for row in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return [
            (logprob, tuple(pairs[:count]))
            for logprob, pairs, count in zip(own.tolist(), best, counts, strict=True)
        ]
