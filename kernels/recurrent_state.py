"""The memory of recurrent layers: their states, and the slots that the rows of a step use.

A recurrent layer (gated delta net, Mamba2, short convolution) has a state of fixed size per
sequence instead of keys and values. The positions of a sequence are divided into tiles of
`STATE_TILE` tokens. A matrix state contains whole tiles only; the tokens after it are *pending*:
their keys, values and decays are stored one by one and enter the matrix when their tile is
complete. Every result is computed from the matrix at the start of its tile and the pending tokens
of the tile, so it has the same bits for every division of the sequence into chunks. Draft tokens
stay pending until they are accepted, so a rejected draft needs no copy of the state.

Slots: 0 to rows - 1 are the states of running sequences, slot = row. The slots after them are
snapshots, which the prefix cache keeps. Dimensions: R rows of the step, H heads (of values), G
groups of heads with common keys, N and D key and value dimension, C channels and L taps of a
convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Tensor = TypeVar("Tensor")

STATE_TILE: Final = 16
"""Tokens of a tile. KV blocks are whole tiles, so a snapshot has no pending tokens."""


@dataclass(frozen=True, slots=True)
class StateRows(Generic[Tensor]):
    """The states that the chunks of a step read and write, as int32 tensors [R].

    - `source`: slot of the matrix before the chunk; negative: an empty sequence (zeros).
    - `base`: number of leading tokens in the matrix of `source`, a multiple of STATE_TILE. The
      tokens from `base` to the start of the chunk are pending in the row `target`. If `source` is a
      snapshot or negative, `base` is the start of the chunk.
    - `target`: row that gets the state after the chunk. Its matrix then has the tokens
      [0, end) with end = (start + keep) // STATE_TILE * STATE_TILE, which is the next `base`; the
      other tokens of the chunk are pending.
    - `keep`: number of leading tokens of the chunk that will not be rejected; the others are draft
      tokens. The next chunk of the row begins at start + keep or later.
    - `save`: snapshot slot (rows or more) to which the state is also written; negative: none.
    - `save_after`: number of leading tokens of the chunk that the snapshot contains, from 0 to
      `keep`; start + save_after is a multiple of STATE_TILE and at least `base`.
    """

    source: Tensor
    base: Tensor
    target: Tensor
    keep: Tensor
    save: Tensor
    save_after: Tensor


@dataclass(frozen=True, slots=True)
class ConvState(Generic[Tensor]):
    """The last inputs of a causal convolution, float32.

    - `recent`: [rows, ring, C]; the input at position p has index p % ring. `ring` is at least
      L - 1, and L - 1 + (draft tokens of a step) with speculation.
    - `saved`: [snapshots, L - 1, C]; the inputs before the position of the snapshot, in order.
      Inputs before position 0 are zeros.
    """

    recent: Tensor
    saved: Tensor


@dataclass(frozen=True, slots=True)
class MatrixState(Generic[Tensor]):
    """The matrix states of a layer and its pending tokens, float32. The pending token at position p
    has index p % ring; `ring` is STATE_TILE, or 2 * STATE_TILE with speculation.

    - `matrix`: [slots, H, N, D]; sum over tokens of decayed outer products of keys and values.
    - `keys`: [rows, ring, G * N]. `values`: [rows, ring, H * D].
    - `decays`: [rows, ring, H]; logarithm of the decay from the start of the tile to the token, its
      own included; at most 0.
    """

    matrix: Tensor
    keys: Tensor
    values: Tensor
    decays: Tensor


@dataclass(frozen=True, slots=True)
class LayerState(Generic[Tensor]):
    """The recurrent state of one layer for all slots."""

    conv: ConvState[Tensor] | None = None
    matrix: MatrixState[Tensor] | None = None


@dataclass(frozen=True, slots=True)
class StateShape:
    """The sizes of the recurrent state of one layer; 0 for a part that the layer lacks.

    - `channels`, `taps`: C and L of the convolution.
    - `heads`, `groups`, `key_dim`, `value_dim`: H, G, N, D of the matrix state.
    """

    channels: int = 0
    taps: int = 0
    heads: int = 0
    groups: int = 0
    key_dim: int = 0
    value_dim: int = 0

    @property
    def snapshot_floats(self) -> int:
        """Number of float32 elements of one snapshot."""
        conv = self.channels * max(self.taps - 1, 0)
        return self.heads * self.key_dim * self.value_dim + conv

    def row_floats(self, draft_tokens: int) -> int:
        """Return the number of float32 elements of the state of one running sequence.
        `draft_tokens`: most draft tokens of a step."""
        conv = self.channels * conv_ring(self.taps, draft_tokens) if self.taps else 0
        pending = self.groups * self.key_dim + self.heads * (self.value_dim + 1)
        matrix = self.heads * self.key_dim * self.value_dim
        return matrix + conv + matrix_ring(draft_tokens) * pending


def conv_ring(taps: int, draft_tokens: int) -> int:
    """Return the number of inputs that `ConvState.recent` has per row."""
    return max(taps - 1, 1) + draft_tokens


def matrix_ring(draft_tokens: int) -> int:
    """Return the number of pending tokens that `MatrixState` has per row."""
    return STATE_TILE if draft_tokens == 0 else 2 * STATE_TILE
