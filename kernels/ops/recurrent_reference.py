"""The references of the ops that read and write the states of recurrent layers (see
`kernels.recurrent_state`): one token after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.functional import silu, softplus

from penstock.kernels.recurrent_state import STATE_TILE, ConvState, MatrixState
from penstock.kernels.step_inputs import StepInputs

_LENGTH_EPS = 1e-6  # added to the squared length of keys and queries


@dataclass(frozen=True, slots=True)
class StateChunk:
    """One row of `StateRows` with the chunk of the row.

    `tokens`: the tokens of the chunk in the step. `start`, `stop`: the positions of the first token
    and after the last one. The other fields are those of `StateRows`.
    """

    tokens: slice
    start: int
    stop: int
    source: int
    base: int
    target: int
    keep: int
    save: int
    save_after: int

    @property
    def end(self) -> int:
        """The number of leading tokens in the matrix after the chunk."""
        return (self.start + self.keep) // STATE_TILE * STATE_TILE

    @property
    def save_position(self) -> int:
        """The number of leading tokens that the snapshot has."""
        return self.start + self.save_after


def state_chunks(inputs: StepInputs[torch.Tensor]) -> Iterator[StateChunk]:
    """Yield the chunk of each row of the step. Raises ValueError without `inputs.states`."""
    rows = inputs.states
    if rows is None:
        raise ValueError("inputs.states: is None, expected the states of the rows")
    fields = (rows.source, rows.base, rows.target, rows.keep, rows.save, rows.save_after)
    columns = [field.tolist() for field in fields]
    ends = inputs.context_lens.tolist()
    chunks = itertools.pairwise(inputs.query_starts.tolist())
    for (first, last), stop, values in zip(chunks, ends, zip(*columns, strict=True), strict=True):
        yield StateChunk(slice(first, last), stop - (last - first), stop, *values)


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inputs: StepInputs[torch.Tensor],
    state: ConvState[torch.Tensor],
) -> torch.Tensor:
    """Return silu(y), with y the depthwise causal convolution over the tokens of each sequence:
    y[t, c] = bias[c] + sum over l < L of weight[c, l] * x[t - L + 1 + l, c]. [T, C] -> [T, C]."""
    return silu(_convolution(x, weight, bias, inputs, state)).to(x.dtype)


def gated_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inputs: StepInputs[torch.Tensor],
    state: ConvState[torch.Tensor],
) -> torch.Tensor:
    """Return c * conv(b * v) for x = [b | c | v], with the convolution of `causal_conv` without
    silu: [T, 3 C] -> [T, C]."""
    b, c, v = x.to(torch.promote_types(x.dtype, state.recent.dtype)).chunk(3, dim=-1)
    return (c * _convolution(b * v, weight, bias, inputs, state)).to(x.dtype)


def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inputs: StepInputs[torch.Tensor],
    state: ConvState[torch.Tensor],
) -> torch.Tensor:
    x = x.to(torch.promote_types(x.dtype, state.recent.dtype))
    before = weight.shape[1] - 1
    out = torch.empty_like(x)
    for chunk in state_chunks(inputs):
        known = torch.cat((_inputs_before(chunk, before, state).to(x.dtype), x[chunk.tokens]))
        windows = known.unfold(0, before + 1, 1)  # [t, C, L]
        out[chunk.tokens] = (windows * weight).sum(-1) + (0 if bias is None else bias)
        _write_conv(chunk, known, before, state)
    return out


def _inputs_before(chunk: StateChunk, count: int, state: ConvState[torch.Tensor]) -> torch.Tensor:
    """Return the `count` inputs before the chunk: [count, C]."""
    rows, ring, channels = state.recent.shape
    if chunk.source >= rows:
        return state.saved[chunk.source - rows]
    before = state.recent.new_zeros(count, channels)
    known = min(count, chunk.start) if chunk.source >= 0 else 0
    if known:
        positions = torch.arange(chunk.start - known, chunk.start, device=before.device)
        before[count - known :] = state.recent[chunk.source, positions % ring]
    return before


def _write_conv(
    chunk: StateChunk, known: torch.Tensor, before: int, state: ConvState[torch.Tensor]
) -> None:
    """Write the inputs `known`: [before + t, C] to the ring of the target and to the snapshot."""
    kept = min(state.recent.shape[1], len(known))
    positions = torch.arange(chunk.stop - kept, chunk.stop, device=known.device)
    state.recent[chunk.target, positions % state.recent.shape[1]] = known[len(known) - kept :].to(
        state.recent.dtype
    )
    if chunk.save >= 0:
        window = slice(chunk.save_after, chunk.save_after + before)
        state.saved[chunk.save - state.recent.shape[0]] = known[window].to(state.saved.dtype)


class _OpenTile:
    """The matrix at the start of a tile, [H, N, D], and the tokens of the tile so far.

    `boundaries`: the matrix of each number of leading tokens that was passed, from the base on.
    """

    def __init__(self, matrix: torch.Tensor, base: int) -> None:
        self.matrix = matrix
        self.boundaries = {base: matrix}
        self._last = base
        self._clear()

    def _clear(self) -> None:
        heads, keys, values = self.matrix.shape
        self._keys = self.matrix.new_empty(0, heads, keys)
        self._values = self.matrix.new_empty(0, heads, values)
        self.decays = self.matrix.new_empty(0, heads)

    def decay_after(self, log: torch.Tensor) -> torch.Tensor:
        """Return the logarithm of the decay [H] from the start of the tile to a next token that
        decays the state by exp(log)."""
        return self.decays[-1] + log if len(self.decays) else log

    def read(self, vector: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        """Return the state at a token with the logarithm of the decay `decay` [H], times `vector`
        [H, N]: [H, D]."""
        start = torch.einsum("hnd,hn->hd", self.matrix, vector) * decay.exp()[:, None]
        scores = torch.einsum("ihn,hn->ih", self._keys, vector) * (decay - self.decays).exp()
        return start + torch.einsum("ih,ihd->hd", scores, self._values)

    def append(self, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor) -> None:
        """Add a token to the tile: [H, N], [H, D], [H]."""
        self._keys = torch.cat((self._keys, key[None]))
        self._values = torch.cat((self._values, value[None]))
        self.decays = torch.cat((self.decays, decay[None]))

    def complete(self) -> None:
        """Add the tokens of the tile to the matrix if the tile is complete."""
        if len(self._keys) < STATE_TILE:
            return
        last = self.decays[-1]
        keys = self._keys * (last - self.decays).exp()[..., None]
        new = torch.einsum("ihn,ihd->hnd", keys, self._values)
        self.matrix = self.matrix * last.exp()[:, None, None] + new
        self._last += STATE_TILE
        self.boundaries[self._last] = self.matrix
        self._clear()


# Returns the value that a token adds to the state. Takes the index of the token in the step, the
# tile before the token, and the token's key [H, N] and decay [H].
_NewValue = Callable[[int, _OpenTile, torch.Tensor, torch.Tensor], torch.Tensor]


def _scan(
    inputs: StepInputs[torch.Tensor],
    state: MatrixState[torch.Tensor],
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    new_value: _NewValue,
) -> torch.Tensor:
    """Return the state after each token times the token's query, [T, H, D], and write the states.

    `operands`: keys [T, G, N], queries [T, G, N] and the logarithm of each token's decay [T, H].
    """
    keys, queries, logs = operands
    heads, value_dim = state.matrix.shape[1], state.matrix.shape[3]
    out = keys.new_empty(len(keys), heads, value_dim)
    for chunk in state_chunks(inputs):
        tile = _opened(chunk, state, keys)
        for position in range(chunk.start, chunk.stop):
            token = chunk.tokens.start + position - chunk.start
            key, query = (_of_heads(one[token], heads) for one in (keys, queries))
            decay = tile.decay_after(logs[token])
            value = new_value(token, tile, key, decay)
            tile.append(key, value, decay)
            out[token] = tile.read(query, decay)
            tile.complete()
            if position >= chunk.end:
                place = (chunk.target, position % state.keys.shape[1])
                state.keys[place] = keys[token].flatten().to(state.keys.dtype)
                state.values[place] = value.flatten().to(state.values.dtype)
                state.decays[place] = decay.to(state.decays.dtype)
        state.matrix[chunk.target] = tile.boundaries[chunk.end].to(state.matrix.dtype)
        if chunk.save >= 0:
            state.matrix[chunk.save] = tile.boundaries[chunk.save_position].to(state.matrix.dtype)
    return out


def _opened(chunk: StateChunk, state: MatrixState[torch.Tensor], like: torch.Tensor) -> _OpenTile:
    """Return the tile of the start of the chunk, with the pending tokens before it."""
    _, heads, key_dim, value_dim = state.matrix.shape
    matrix = like.new_zeros(heads, key_dim, value_dim)
    if chunk.source >= 0:
        matrix = state.matrix[chunk.source].to(like.dtype, copy=True)
    tile = _OpenTile(matrix, chunk.base)
    for position in range(chunk.base, chunk.start):
        place = (chunk.target, position % state.keys.shape[1])
        key = state.keys[place].to(like.dtype).view(-1, key_dim)
        value = state.values[place].to(like.dtype).view(heads, value_dim)
        tile.append(_of_heads(key, heads), value, state.decays[place].to(like.dtype))
        tile.complete()
    return tile


def _of_heads(groups: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the vector of each head: [G, N] -> [H, N]."""
    return groups.repeat_interleave(heads // len(groups), dim=0)


def gated_delta_rule(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    decay: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    state: MatrixState[torch.Tensor],
    heads: tuple[int, int, int, int],
    beta_scale: float,
) -> torch.Tensor:
    """Compute a gated delta net: [T, 2 G N + H D] -> [T, H D]. Per head: S = exp(g) S;
    u = beta (v - S^T k); S = S + k u^T; out = S^T q.

    `heads`: (G, H, N, D).
    """
    num_groups, num_heads, key_dim, value_dim = heads
    x = qkv.to(torch.promote_types(qkv.dtype, state.matrix.dtype))
    queries, keys, values = x.split((num_groups * key_dim,) * 2 + (num_heads * value_dim,), -1)
    queries, keys = (_unit(one.unflatten(-1, (num_groups, key_dim))) for one in (queries, keys))
    values = values.unflatten(-1, (num_heads, value_dim))
    b, a = gates.to(x.dtype).chunk(2, dim=-1)
    beta = beta_scale * torch.sigmoid(b)
    logs = -decay[0] * softplus(a + decay[1])

    def new_value(
        token: int, tile: _OpenTile, key: torch.Tensor, decayed: torch.Tensor
    ) -> torch.Tensor:
        value: torch.Tensor = beta[token][:, None] * (values[token] - tile.read(key, decayed))
        return value

    operands = (keys, queries / key_dim**0.5, logs.to(x.dtype))
    return _scan(inputs, state, operands, new_value).flatten(1).to(qkv.dtype)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + _LENGTH_EPS)


def state_space_scan(
    xbc: torch.Tensor,
    dt: torch.Tensor,
    constants: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    state: MatrixState[torch.Tensor],
    heads: tuple[int, int, int, int],
    dt_limits: tuple[float, float],
) -> torch.Tensor:
    """Compute the scan of Mamba2: [T, H D + 2 G N] -> [T, H D]. Per head, with d = clamp(softplus(
    dt + constants[1]), dt_limits): S = exp(-constants[0] d) S + b (d x)^T; out = S^T c +
    constants[2] x.

    `heads`: (G, H, N, D).
    """
    num_groups, num_heads, key_dim, value_dim = heads
    rows = xbc.to(torch.promote_types(xbc.dtype, state.matrix.dtype))
    x, b, c = rows.split((num_heads * value_dim,) + (num_groups * key_dim,) * 2, dim=-1)
    x = x.unflatten(-1, (num_heads, value_dim))
    b, c = (one.unflatten(-1, (num_groups, key_dim)) for one in (b, c))
    steps = softplus(dt.to(rows.dtype) + constants[1]).clamp(*dt_limits).to(rows.dtype)
    logs = (-constants[0] * steps).to(rows.dtype)
    out = _scan(inputs, state, (b, c, logs), lambda token, *_: steps[token][:, None] * x[token])
    skipped: torch.Tensor = constants[2][:, None] * x
    return (out + skipped).flatten(1).to(xbc.dtype)
