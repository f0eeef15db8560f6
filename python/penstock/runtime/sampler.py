"""The CPU sampler: samples tokens from the logits of a step, verifies draft tokens, scores
prompts."""

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
        """Return the result of a step. `logits: [S, V]`: first one row for each token to sample
        (chunks that do not complete their prompt sample none), then one row for each position to
        score."""
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
        """Score prompts: return the known token after each position of `logits`, with its
        log-probability."""
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
        """Sample after the last known token and after each draft token of `chunks`. Append and
        return the sampled tokens of each chunk, up to and including the first one that differs from
        the draft."""
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
        """Verify the draft tokens of all rows one position at a time, because a logits processor
        depends on the tokens sampled before."""
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
        """Sample one token for each of the rows `sampled` and append it to its row."""
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
        """Return the token `token_ids[i]` of each row `sampled[i]`, with log-probabilities if
        requested. `places[i]`: row of `logits` from which the token was sampled, None for i itself.
        """
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
        """Return the log-probabilities of the sampled tokens for rows that request them, by index
        in `sampled`. Failed rows are left out. `places`: see `_sampled_tokens`."""
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
        """Return for each i, from row `at[i]` of `logits`: the log-probability of `tokens[i]`, and
        the `counts[i]` most likely tokens that can be sampled."""
        own, ids, values = self._ops.top_logprobs(logits, at, tokens, max(counts))
        best = [
            [pair for pair in zip(*row, strict=True) if pair[1] > -math.inf]
            for row in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return [
            (logprob, tuple(pairs[:count]))
            for logprob, pairs, count in zip(own.tolist(), best, counts, strict=True)
        ]
