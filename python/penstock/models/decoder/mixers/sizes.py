"""Checks the sizes of recurrent states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.errors import ModelError
from penstock.kernels.recurrent_state import StateShape
from penstock.models.decoder.spec_limits import MAX_WIDTH, check_sizes

_MOST_TAPS: Final = 4
_MOST_ELEMENTS: Final = 512
_STEP: Final = 8
"""Keys and values of a head have a multiple of this many elements."""


@dataclass(frozen=True, slots=True)
class StateKeys:
    """The keys in a file for the sizes of a state, for messages. See `StateShape`."""

    taps: str
    groups: str = ""
    heads: str = ""
    key_dim: str = ""
    value_dim: str = ""


GGUF_KEYS: Final = StateKeys(
    taps="ssm.conv_kernel",
    groups="ssm.group_count",
    heads="ssm.time_step_rank",
    key_dim="ssm.state_size",
    value_dim="ssm.inner_size per head",
)


def check_state(state: StateShape, keys: StateKeys, where: str) -> None:
    """Check the sizes of a recurrent state. Raises ModelError that starts with `where` and names
    the key."""
    if not 2 <= state.taps <= _MOST_TAPS:
        raise ModelError(f"{where}: {keys.taps} {state.taps} is not in 2..{_MOST_TAPS}")
    if keys.heads:
        _check_heads(state, keys, where)
    check_sizes(where, {"channels of a convolution": (state.channels, MAX_WIDTH)})


def _check_heads(state: StateShape, keys: StateKeys, where: str) -> None:
    limits = {keys.groups: (state.groups, MAX_WIDTH), keys.heads: (state.heads, MAX_WIDTH)}
    check_sizes(where, limits)
    if state.heads % state.groups:
        raise ModelError(
            f"{where}: {keys.heads} {state.heads} is not a multiple of {keys.groups} {state.groups}"
        )
    for key, size in ((keys.key_dim, state.key_dim), (keys.value_dim, state.value_dim)):
        if size % _STEP or not _STEP <= size <= _MOST_ELEMENTS:
            raise ModelError(
                f"{where}: {key} {size} is not a multiple of {_STEP} in {_STEP}..{_MOST_ELEMENTS}"
            )
