"""The table of rows that lives on a device, and the words that tell it what changed.

A request keeps one row from admission to release. What a step needs of its rows lies in
`RowState`; the host sends what it alone knows, packed into one array of int32 words (`Upload`), and
three ops do the rest: `update_rows` takes changes in, `prepare_step` builds the inputs of the step
from a list of chunks, `append_tokens` lets sampled tokens join their rows, so that the next step
can
start from them before the host has seen them. Penalties, biases and the like are kept there too:
`adjust_rows` changes logits by them before the draw.

The state has one row more than there are requests, the last: that of the chunks that only fill a
step up to a size for which a graph was captured. It stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from penstock.kernels.ops_interface import StepInputs

Tensor = TypeVar("Tensor")

CHUNK_WORDS: Final = 9
"""A chunk: row, start (negative: the one token of the chunk is the one sampled last, and the device
knows where it stands), length with its draft, index of its first token in the step, index of its
first place among the sampled rows (negative: it draws nothing), length of its draft, index of its
first scored place, position of the first score, number of scores."""

UPDATE_WORDS: Final = 15
"""A row as the host knows it: row, known tokens, last of them, temperature, top-k, top-p, min-p
(floats as their bits), low and high half of the seed; presence, frequency and repetition penalty
(floats), number of biases, number of tokens that are held back, and until which position."""

RUN_WORDS: Final = 4
"""Blocks that follow those of a row: row, how many it has, how many follow, index of their words in
the upload."""


@dataclass(frozen=True, slots=True)
class Adjustments(Generic[Tensor]):
    """What changes the logits of N rows before their draw, and nothing of the one that fills up.
    The order and the arithmetic are those of `adjust_logits` in `kernels.sampler_inputs`. int32
    except
    for the floats; the order of a list means nothing, and a row names a token once.

    Tokens that are held back get -inf where the position of the sampled token is below
    `held_until`;
    those that the vocabulary does not have mean nothing.
    `counts` means nothing in a row whose penalties are off.
    """

    presence: Tensor  # [N + 1] float32; 0: off
    frequency: Tensor  # [N + 1] float32; 0: off
    repetition: Tensor  # [N + 1] float32; 1: off
    num_biases: Tensor  # [N + 1]
    num_held: Tensor  # [N + 1]
    held_until: Tensor  # [N + 1]
    counts: Tensor  # [N + 1, V]; 0: not seen; n + 1: seen, and n times in the answer
    bias_tokens: Tensor  # [N + 1, most biases]
    bias_values: Tensor  # [N + 1, most biases] float32
    held: Tensor  # [N + 1, most tokens held back]


@dataclass(frozen=True, slots=True)
class RowState(Generic[Tensor]):
    """N rows and the one that fills up. int32 but for the floats and `seed`, int64."""

    known: Tensor  # [N + 1] how many tokens are known
    last: Tensor  # [N + 1] the last of them
    tables: Tensor  # [N + 1, max_blocks]; past the appended blocks undefined
    temperature: Tensor  # [N + 1] float32
    top_k: Tensor  # [N + 1]
    top_p: Tensor  # [N + 1] float32
    min_p: Tensor  # [N + 1] float32
    seed: Tensor  # [N + 1] int64, the bits of a uint64
    adjust: Adjustments[Tensor]


@dataclass(frozen=True, slots=True)
class Upload(Generic[Tensor]):
    """`words`: [W] int32, the chunks first. `tokens_at`: index of the tokens of the step, one a
    token, of which those of chunks with a start count; `updates_at`, `runs_at`: of `num_updates`
    rows and `num_runs` runs."""

    words: Tensor
    tokens_at: int = 0
    updates_at: int = 0
    num_updates: int = 0
    runs_at: int = 0
    num_runs: int = 0


@dataclass(frozen=True, slots=True)
class StepBuffers(Generic[Tensor]):
    """Where a step is prepared: at least as large as the step. `inputs`: what the model reads;
    the others: [S] what the sampler reads of each place that is sampled from, `seed` and `position`
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
        """The first so many: of `places` whose logits are wanted, `num_sampled` are sampled from;
        block
        tables of `blocks` blocks."""
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
