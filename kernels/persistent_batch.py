"""The persistent batch: the state of all rows on a device, and the words that update it.

A request keeps one row from admission to release. `RowState` holds all that a step needs of its
rows; the host packs the changes that only it knows into one array of int32 words (`Upload`), and
three ops do the rest: `update_rows` applies changes, `prepare_step` builds the inputs of the step
from a list of chunks, `append_tokens` appends sampled tokens to their rows, so that the next step
can start from them before the host has read them. Penalties, biases and the like are stored there
too: `adjust_rows` adjusts logits by them before sampling.

The state has one row more than there are requests, the last: the padding row, used by chunks that
only pad a step to the size of a captured graph. It never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.kernels.ops_interface import StepInputs

Tensor = TypeVar("Tensor")

CHUNK_WORDS: Final = 9
"""Words of a chunk: row, start (negative: its one token is the last sampled one, whose position the
device knows), length including draft tokens, index of its first token in the step, index of its
first place among the sampled rows (negative: it samples nothing), number of draft tokens, index of
its first scored place, position of the first score, number of scores."""

UPDATE_WORDS: Final = 15
"""Words of a row as the host knows it: row, known tokens, last of them, temperature, top-k, top-p,
min-p (floats as their bits), low and high half of the seed; presence, frequency and repetition
penalty (floats), number of biases, number of suppressed tokens, and until which position."""

RUN_WORDS: Final = 4
"""Words of a run of blocks to append: row, blocks that it has, blocks that follow, index of their
words in the upload."""


@dataclass(frozen=True, slots=True)
class Adjustments(Generic[Tensor]):
    """The adjustments of the logits of N rows before sampling, and of the padding row, which has
    none.

    Order and arithmetic are those of `adjust_logits` in `kernels.sampler_inputs`. int32 except for
    the floats. The order of a list has no meaning, and a row names a token once.

    Suppressed tokens get -inf while the position of the sampled token is below `suppressed_until`;
    tokens outside the vocabulary are ignored. `counts` is undefined for a row without penalties.
    """

    presence: Tensor  # [N + 1] float32; 0: off
    frequency: Tensor  # [N + 1] float32; 0: off
    repetition: Tensor  # [N + 1] float32; 1: off
    num_biases: Tensor  # [N + 1]
    num_suppressed: Tensor  # [N + 1]
    suppressed_until: Tensor  # [N + 1]
    counts: Tensor  # [N + 1, V]; 0: not seen; n + 1: seen, and n times in the answer
    bias_tokens: Tensor  # [N + 1, most biases]
    bias_values: Tensor  # [N + 1, most biases] float32
    suppressed: Tensor  # [N + 1, most suppressed tokens]


@dataclass(frozen=True, slots=True)
class RowState(Generic[Tensor]):
    """N rows and the padding row. int32 except for the floats, and `seed`, int64."""

    known: Tensor  # [N + 1] number of known tokens
    last_token: Tensor  # [N + 1] the last known token
    tables: Tensor  # [N + 1, max_blocks]; undefined past the appended blocks
    temperature: Tensor  # [N + 1] float32
    top_k: Tensor  # [N + 1]
    top_p: Tensor  # [N + 1] float32
    min_p: Tensor  # [N + 1] float32
    seed: Tensor  # [N + 1] int64, the bits of a uint64
    adjust: Adjustments[Tensor]


@dataclass(frozen=True, slots=True)
class Upload(Generic[Tensor]):
    """`words`: int32, the chunks first. `tokens_at`: index of the tokens of the step, one word each
    (only those of chunks with a start are used); `updates_at`, `runs_at`: index of the
    `num_updates` rows and of the `num_runs` runs."""

    words: Tensor
    tokens_at: int = 0
    updates_at: int = 0
    num_updates: int = 0
    runs_at: int = 0
    num_runs: int = 0


@dataclass(frozen=True, slots=True)
class StepBuffers(Generic[Tensor]):
    """Buffers in which a step is prepared, at least as large as the step. `inputs`: those of the
    model; the others: [S], those of the sampler for each sampled place, `seed` and `position`
    int64; `rows`: its row."""

    inputs: StepInputs[Tensor]
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor
    rows: Tensor

    def cut(
        self, chunks: int, tokens: int, places: int, num_sampled: int, blocks: int
    ) -> StepBuffers[Any]:
        """Return the parts for a step: of `places` whose logits are needed, `num_sampled` are
        sampled; block tables have `blocks` blocks."""
        inputs: Any = self.inputs
        tables = inputs.block_tables.view(-1)[: chunks * blocks]
        cut = StepInputs(
            tokens=inputs.tokens[:tokens],
            positions=inputs.positions[:tokens],
            slots=inputs.slots[:tokens],
            query_starts=inputs.query_starts[: chunks + 1],
            context_lens=inputs.context_lens[:chunks],
            block_tables=tables.view(chunks, blocks),
            sample_rows=inputs.sample_rows[:places],
        )
        columns: tuple[Any, ...] = (
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.seed,
            self.position,
            self.rows,
        )
        return StepBuffers(cut, *(column[:num_sampled] for column in columns))
