"""What crosses the wall between the scheduler and the runtime: StepPlan out, StepResult back.

A request keeps one *row* of the runtime's fixed table from admission to release. A plan says only
what changed since the plan before: rows admitted and released, blocks appended to a row's table,
and which span of each row's tokens to compute. No tensors, no torch.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.dialog import Sampling

NO_ADAPTER: Final = -1


class Admit(msgspec.Struct, frozen=True):
    """A request takes `row`. `token_ids`: all known tokens: the prompt, and after a preemption
    what was generated before it. `prompt_tokens`: how many of them are prompt. `adapter_slot`: the
    runtime's slot of its adapter. The tokens `held_back` are not sampled while fewer than
    `held_until` tokens are known."""

    row: int
    token_ids: tuple[int, ...]
    prompt_tokens: int
    sampling: Sampling
    seed: int
    top_logprobs: int | None
    prompt_logprobs: int | None = None
    adapter_slot: int = NO_ADAPTER
    held_back: tuple[int, ...] = ()
    held_until: int = 0


class AppendBlocks(msgspec.Struct, frozen=True):
    """`blocks` follow the blocks that `row` has; the first time they may hold a cached prefix."""

    row: int
    blocks: tuple[int, ...]


class AppendTokens(msgspec.Struct, frozen=True):
    """`token_ids` follow the known tokens of `row`; nobody drew them."""

    row: int
    token_ids: tuple[int, ...]


class CopyBlock(msgspec.Struct, frozen=True):
    """What `block` of the device holds goes to `cpu_block` of the host, or comes from there."""

    block: int
    cpu_block: int


class Chunk(msgspec.Struct, frozen=True):
    """Compute tokens [start, start + length) of `row`. With `samples` the chunk ends at the last
    known token, and the runtime samples the next one and appends it to the row.

    `draft_tokens`: guesses at what will be sampled, computed in the same step as if they were
    known. The
    runtime samples after each of them too, as far as the samples so far are the draft's: what it
    appends is what it would have sampled without.

    `num_scores`: of so many positions from `score_from` on, all in the chunk, the log-probability
    of the known token that follows is wanted.
    """

    row: int
    start: int
    length: int
    samples: bool
    draft_tokens: tuple[int, ...] = ()
    score_from: int = 0
    num_scores: int = 0


class StepPlan(msgspec.Struct, frozen=True):
    """Applied in this order: saves, restores, releases, admissions, blocks, forced, chunks. At most
    one chunk a row. num_tokens <= the token budget. Never empty of chunks.

    `saves` go to the host before the step overwrites them. `restores` come from there beside the
    steps, all of them after the saves and those of earlier steps first; `awaits`: the step begins
    when those of that step have arrived, and touches no block whose content is still to arrive.
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
    """A token sampled for `row`. `top`: (token id, logprob), best first. `logprob` None unless the
    row asked. `failed`: the row's logits were not finite; the token is meaningless."""

    row: int
    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    failed: bool = False


class Scored(msgspec.Struct, frozen=True):
    """A token of the prompt of `row`. `logprob`, `top`: of the model's own distribution at its
    place; nothing steers what nobody samples. NaN: the row's logits were not finite."""

    row: int
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class StepResult(msgspec.Struct, frozen=True):
    """For each chunk with `samples`, in the plan's order: one `SampledToken`, and one more for
    each token
    of its draft that was accepted. And for each chunk its `num_scores` scored tokens.
    `last_restored`:
    the last step of which all restores are known to have arrived."""

    step: int
    sampled: tuple[SampledToken, ...]
    scored: tuple[Scored, ...] = ()
    last_restored: int = 0
