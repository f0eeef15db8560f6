"""The messages between the scheduler and the runtime: StepPlan to the runtime, StepResult back.

A sequence keeps one row of the runtime's persistent batch from admission to release. A plan
contains only the changes since the last plan (rows admitted and released, blocks appended to block
tables) and the tokens of each row to compute. No tensors, no torch.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.dialog import Sampling

NO_ADAPTER: Final = -1


DraftSource = Literal["ngram", "draft_model", "mtp"]
"""A source of draft tokens: earlier text of the sequence, a draft model, or the MTP heads of the
model."""


class MediaSpan(msgspec.Struct, frozen=True):
    """The tokens [start, start + length) of a prompt, which belong to an image, video or recording.

    `digest`: equal for spans with equal embeddings and positions. It is part of the prefix keys of
    the blocks that the span touches, because the token ids of different media are equal.
    `whole`: the tokens attend to each other in both directions, so no chunk ends inside the span.
    """

    start: int
    length: int
    digest: bytes
    whole: bool = False


class MediaRun(msgspec.Struct, frozen=True):
    """The tokens [start, start + length) of a prompt, whose embeddings are rows of an encoded item.

    `digest`: the encoded item.
    `row`: the row of the item for the first token; the next tokens have the next rows.
    `whole`: the tokens of the run attend to each other in both directions.
    """

    start: int
    length: int
    digest: bytes
    row: int = 0
    whole: bool = False


class Admit(msgspec.Struct, frozen=True):
    """Gives `row` to a sequence.

    `token_ids`: all known tokens: the prompt and, after a preemption, the tokens generated before
    it.
    `prompt_tokens`: number of tokens of the prompt.
    `adapter_slot`: the adapter's slot in the runtime, NO_ADAPTER for none.
    `suppressed_tokens`: not sampled while fewer than `suppressed_until` tokens are known.
    `media`: the prompt tokens whose embeddings come from encoded media, by ascending `start`.
    `rope_positions`: the positions of the prompt's tokens, int32 [3, prompt_tokens] in native byte
    order; empty for 0, 1, 2, ...
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
    media: tuple[MediaRun, ...] = ()
    rope_positions: bytes = b""


class AppendBlocks(msgspec.Struct, frozen=True):
    """Appends `blocks` to the block table of `row`. The first blocks of a row may hold a cached
    prefix."""

    row: int
    blocks: tuple[int, ...]


class AppendTokens(msgspec.Struct, frozen=True):
    """Appends the forced tokens `token_ids` to the known tokens of `row`."""

    row: int
    token_ids: tuple[int, ...]


class CopyBlock(msgspec.Struct, frozen=True):
    """A copy from `block` of the device to `cpu_block` of the CPU KV cache, or back."""

    block: int
    cpu_block: int


class StateUse(msgspec.Struct, frozen=True):
    """The snapshots of recurrent states that a chunk reads and writes (see
    `kernels.recurrent_state`). Slots count from 0, the first snapshot.

    `restore`: the snapshot with which the chunk starts, instead of the state of its row; None: the
    state of the row, which is empty at position 0.
    `save`: the snapshot that gets the state after the first `save_after` tokens of the chunk;
    None: none.
    """

    restore: int | None = None
    save: int | None = None
    save_after: int = 0


NO_SNAPSHOTS: Final = StateUse()


class Chunk(msgspec.Struct, frozen=True):
    """The tokens [start, start + length) of `row`, to be computed in one step: a decode or a part
    of a prefill.

    `samples`: the chunk ends at the last known token (a decode, or the last chunk of a prefill),
    and the runtime samples the next token and appends it to the row.
    `draft_tokens`: proposed next tokens, which are verified in the same step. The runtime samples
    after each of them as long as the sampled tokens equal the draft, so the appended tokens are the
    same as without speculation.
    `score_from`, `num_scores`: at `num_scores` positions from `score_from` on, all in the chunk,
    the log-probability of the next known token is requested.
    `state`: snapshots of recurrent states, in a model that has them.
    `num_drafts`: the most draft tokens that the drafter proposes after the last token of the chunk
    and the tokens sampled in this step. The blocks of the row have room for the keys and values of
    all but the last of them. In a chunk that does not sample, a positive number says that drafts
    will be asked for later, so the drafter may compute its keys and values already.
    """

    row: int
    start: int
    length: int
    samples: bool
    draft_tokens: tuple[int, ...] = ()
    score_from: int = 0
    num_scores: int = 0
    state: StateUse = NO_SNAPSHOTS
    num_drafts: int = 0


class StepPlan(msgspec.Struct, frozen=True):
    """One step. The runtime applies the plan in this order: saves, restores, releases, admissions,
    blocks, forced, chunks.

    `chunks`: at least one, at most one per row, and together within the token budget.
    `saves`: blocks to copy to the CPU KV cache before the step overwrites them.
    `restores`: blocks to copy back in parallel with the steps, after all saves and in the order of
    the steps.
    `awaits`: number of a step whose restores must be complete before this step starts. The step
    uses no block that is still being restored.
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
    """A token sampled for `row`.

    `logprob`: None unless the row requested log-probabilities.
    `top`: (token id, log-probability) of the most likely tokens, best first.
    `failed`: the logits of the row were not finite, so the token is meaningless.
    """

    row: int
    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    failed: bool = False


class Scored(msgspec.Struct, frozen=True):
    """A prompt token of `row` with its log-probability. `logprob` and `top` come from the model's
    own distribution, before logits processors. `logprob` is NaN if the logits were not finite."""

    row: int
    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Draft(msgspec.Struct, frozen=True):
    """Draft tokens that a drafter proposes for the positions after the last known token of `row`.

    They are valid until another token is appended to the row.
    """

    row: int
    token_ids: tuple[int, ...]


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step.

    `sampled`: for each chunk that `samples`, in the order of the plan, one token and one more for
    each accepted draft token.
    `scored`: for each chunk, `num_scores` prompt tokens.
    `last_restored`: the last step whose restores are known to be complete.
    `drafts`: for chunks that sample with `num_drafts` > 0, in the order of the plan, at most that
    many tokens; a chunk may be left out.
    `draft_s`: seconds that the drafter took in this step.
    """

    step: int
    sampled: tuple[SampledToken, ...]
    scored: tuple[Scored, ...] = ()
    last_restored: int = 0
    drafts: tuple[Draft, ...] = ()
    draft_s: float = 0.0
