"""Checks the sizes of recurrent states."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import ModelError
from penstock.kernels.recurrent_state import StateShape
from penstock.models.decoder.spec import MAX_WIDTH, check_sizes

MAX_TAPS: Final = 64


def check_state(state: StateShape, where: str) -> None:
    """Check the sizes of a recurrent state. Raises ModelError that starts with `where` and names
    the size."""
    if state.taps and not 2 <= state.taps <= MAX_TAPS:
        raise ModelError(
            f"{where}: the convolution of a mixer has {state.taps} taps, which is not in"
            f" 2..{MAX_TAPS}"
        )
    if not state.heads and not state.groups:
        return
    limits = {
        "key heads of a mixer": (state.groups, MAX_WIDTH),
        "heads of a mixer": (state.heads, MAX_WIDTH),
        "state size of a mixer": (state.key_dim, MAX_WIDTH),
        "head dimension of a mixer": (state.value_dim, MAX_WIDTH),
        "channels of a mixer": (state.channels, MAX_WIDTH),
    }
    check_sizes(where, limits)
    if state.heads % state.groups:
        raise ModelError(
            f"{where}: {state.heads} heads of a mixer cannot be divided among {state.groups} groups"
        )
