"""Messages between the scheduler and the runtime: StepPlan out, StepResult back.

A sequence keeps one row of the runtime's persistent batch from admission to release. A plan
contains only the changes since the last plan: rows admitted and released, blocks appended to a
row's block table, and the span of each row's tokens to compute. No tensors, no torch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.dialog import Sampling

NO_ADAPTER: Final = -1


class Admit(msgspec.Struct, frozen=True):
    """A sequence takes `row`.

    `token_ids`: all known tokens: the prompt and, after a preemption, the tokens generated before
    it. `prompt_tokens`: length of the prompt. `adapter_slot`: the adapter's slot in the runtime.
    `suppressed_tokens` are not sampled while fewer than `suppressed_until` tokens are known.
    """

    row: int
    token_ids: tuple[int, ...]
    prompt_tokens: int
    sampling: Sampling
    seed: int
    top_logprobs: int | None
    prompt_logprobs: int | None = None
    adapter_slot: int = NO_ADAPTER
    suppressed_tokens: tuple[int, ...] = ()
    suppressed_until: int = 0


class AppendBlocks(msgspec.Struct, frozen=True):
    """Append `blocks` to the block table of `row`. The first blocks of a row may hold a cached
    prefix."""

    row: int
    blocks: tuple[int, ...]


class AppendTokens(msgspec.Struct, frozen=True):
    """Append the forced tokens `token_ids` to the known tokens of `row`."""

    row: int
    token_ids: tuple[int, ...]


class CopyBlock(msgspec.Struct, frozen=True):
    """A copy between `block` of the device and `cpu_block` of the CPU KV cache, in either
    direction."""

    block: int
    cpu_block: int


class Chunk(msgspec.Struct, frozen=True):
    """Compute tokens [start, start + length) of `row`: a decode, or a part of a prefill.

    `samples`: the chunk ends at the last known token (a decode, or the last chunk of a prefill),
    and the runtime samples the next token and appends it to the row.

    `draft_tokens`: proposed next tokens, verified in the same step. The runtime samples after each
    of them as long as the sampled tokens equal the draft, so the appended tokens are the same as
    without speculation.

    `num_scores`: number of positions from `score_from` on, all in the chunk, for which the
    log-probability of the next known token is requested.
    """

    row: int
    start: int
    length: int
    samples: bool
    draft_tokens: tuple[int, ...] = ()
    score_from: int = 0
    num_scores: int = 0


class StepPlan(msgspec.Struct, frozen=True):
    """One step. Applied in this order: saves, restores, releases, admissions, blocks, forced,
    chunks.

    It has at least one chunk, at most one chunk per row, and at most the token budget of tokens.
    `saves` are copied to the CPU KV cache before the step overwrites their blocks. `restores` are
    copied back beside the steps, after all saves and in the order of the steps. The step starts
    when the restores of step `awaits` are complete, and uses no block that is still being restored.
    """

    step: int
    releases: tuple[int, ...]
    admissions: tuple[Admit, ...]
    blocks: tuple[AppendBlocks, ...]
    chunks: tuple[Chunk, ...]
    forced: tuple[AppendTokens, ...] = ()
    saves: tuple[CopyBlock, ...] = ()
    restores: tuple[CopyBlock, ...] = ()
    awaits: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(chunk.length + len(chunk.draft_tokens) for chunk in self.chunks)


class SampledToken(msgspec.Struct, frozen=True):
    """A token sampled for `row`. `top`: (token id, logprob), best first. `logprob` is None unless
    the row requested it. `failed`: the row's logits were not finite; the token is meaningless."""

    row: int
    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    failed: bool = False


class Scored(msgspec.Struct, frozen=True):
    """A prompt token of `row`. `logprob` and `top` come from the model's own distribution, without
    logits processors. NaN: the row's logits were not finite."""

    row: int
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step.

    `sampled`: for each chunk that `samples`, in the plan's order, one token and one more per
    accepted draft token. `scored`: for each chunk, `num_scores` prompt tokens. `last_restored`: the
    last step whose restores are known to be complete.
    """

    step: int
    sampled: tuple[SampledToken, ...]
    scored: tuple[Scored, ...] = ()
    last_restored: int = 0
