"""The persistent batch: the state of all rows on a device, and the words that update this state.

A request keeps one row from admission to release. `RowState` holds everything that a step needs of
its rows. The CPU packs the changes that the device cannot compute itself into one array of int32
words (`Upload`). Four ops work on the state:

- `update_rows` applies the changes of an upload.
- `prepare_step` builds the inputs of a step from a list of chunks.
- `adjust_rows` adjusts logits before sampling, by the penalties, biases and suppressed tokens of
  their rows.
- `append_tokens` appends sampled tokens to their rows, so that the next step can start from these
  tokens before the CPU has read them.

The state has one row more than there are requests: the last row is the padding row, for chunks that
only pad a step to the size of a CUDA graph. The padding row never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.kernels.step_inputs import StepInputs

Tensor = TypeVar("Tensor")

CHUNK_WORDS: Final = 9
"""Number of words that describe a chunk, in this order:

- row;
- position of the chunk's first token; negative: the chunk is the last sampled token of the row,
  whose position only the device knows;
- number of tokens, including draft tokens;
- index of the first token in the step;
- index of the first sampled entry in `sample_rows`; negative: the chunk samples nothing;
- number of draft tokens;
- index of the first scored entry in `sample_rows`;
- position of the first token whose logits are scored;
- number of scored entries.
"""

UPDATE_WORDS: Final = 16
"""Number of words that update a row, in this order: row, number of known tokens, last known token,
temperature, top-k, top-p, min-p, low and high half of the seed, presence penalty, frequency
penalty, repetition penalty, number of biases, number of suppressed tokens, `suppressed_until`, rope
shift.
Floats are stored as their bits."""

RUN_WORDS: Final = 4
"""Number of words that describe a run of KV blocks to append to a block table, in this order: row,
number of blocks already in the table, number of blocks to append, index of these blocks in the
upload."""


@dataclass(frozen=True, slots=True)
class Adjustments(Generic[Tensor]):
    """Adjustments of the logits of N rows before sampling, and of the padding row, which has none.

    `adjust_logits` in `kernels.sampler_inputs` specifies the order and the arithmetic. Tensors are
    int32 unless stated otherwise. A list has any order and contains a token at most once per row.

    Suppressed tokens get -inf while the position of the sampled token is below `suppressed_until`;
    suppressed tokens outside the vocabulary are ignored. `counts` is undefined for a row without
    penalties.
    """

    presence: Tensor  # [N + 1] float32; 0: off
    frequency: Tensor  # [N + 1] float32; 0: off
    repetition: Tensor  # [N + 1] float32; 1: off
    num_biases: Tensor  # [N + 1] used entries of `bias_tokens`
    num_suppressed: Tensor  # [N + 1] used entries of `suppressed`
    suppressed_until: Tensor  # [N + 1] first position without suppression
    counts: Tensor  # [N + 1, V]; 0: not seen; n + 1: seen, n times in the answer
    bias_tokens: Tensor  # [N + 1, most biases]
    bias_values: Tensor  # [N + 1, most biases] float32
    suppressed: Tensor  # [N + 1, most suppressed tokens]


@dataclass(frozen=True, slots=True)
class RowState(Generic[Tensor]):
    """The state of N rows and of the padding row. Tensors are int32 unless stated otherwise."""

    known: Tensor  # [N + 1] number of known tokens
    last_token: Tensor  # [N + 1] the last known token
    tables: Tensor  # [N + 1, max_blocks]; undefined past the appended blocks
    temperature: Tensor  # [N + 1] float32
    top_k: Tensor  # [N + 1]
    top_p: Tensor  # [N + 1] float32
    min_p: Tensor  # [N + 1] float32
    seed: Tensor  # [N + 1] int64, the bits of a uint64
    rope_shift: Tensor  # [N + 1] added to the place of a token in its sequence, for its rotation
    adjust: Adjustments[Tensor]


@dataclass(frozen=True, slots=True)
class Upload(Generic[Tensor]):
    """The words that describe a step, and the changes to rows before the step.

    `words`: int32, starting with the chunks of the step, `CHUNK_WORDS` each.
    `tokens_at`: index in `words` of the tokens of the step, one word each. The tokens of chunks
        with a negative start are not used.
    `updates_at`, `num_updates`: index in `words` of the updated rows, and their number.
    `runs_at`, `num_runs`: index in `words` of the runs of KV blocks, and their number.
    """

    words: Tensor
    tokens_at: int = 0
    updates_at: int = 0
    num_updates: int = 0
    runs_at: int = 0
    num_runs: int = 0


@dataclass(frozen=True, slots=True)
class StepBuffers(Generic[Tensor]):
    """Buffers for the inputs of a step, at least as large as the step.

    All fields except `inputs` are vectors with one entry per token to sample (S entries; a row with
    draft tokens has several).

    `inputs`: inputs of the model.
    `temperature`, `top_p`, `min_p`: float32.
    `top_k`: int32.
    `seed`: int64, the bits of a uint64.
    `position`: int64, position of the token to sample.
    `rows`: int32, index of the token's row in `RowState`.
    """

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
        """Return views of the buffers, cut to the size of a step.

        `chunks`: number of chunks.
        `tokens`: number of tokens.
        `places`: number of tokens whose logits are needed: the length of `inputs.sample_rows`,
            which lists sampled tokens first, then tokens that are only scored.
        `num_sampled`: number of sampled tokens, the length of the sampling parameters.
        `blocks`: number of entries of each block table.
        """
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
