"""The interface of a loaded speech model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

Samples: TypeAlias = npt.NDArray[np.float32]
Tokens: TypeAlias = tuple[int, ...]


def memory_bytes(weight_bytes: int) -> int:
    """Return the memory that a speech model needs: its weights, and as much again for its work."""
    return 2 * weight_bytes


class SpeakerInfo(msgspec.Struct, frozen=True):
    """Describes a loaded speech model.

    `model_id`, `fingerprint`: name, and identification of its files.
    `sample_rate`: samples per second.
    `voices`: the names of its voices, the default voice first.
    `weight_bytes`: size of the weights.
    """

    model_id: str
    fingerprint: str
    sample_rate: int
    voices: tuple[str, ...]
    weight_bytes: int

    @property
    def memory_bytes(self) -> int:
        """The memory that is planned for the model."""
        return memory_bytes(self.weight_bytes)


class Speaker(Protocol):
    """A loaded speech model. Not thread-safe: all calls must come from one thread."""

    @property
    def info(self) -> SpeakerInfo: ...

    @property
    def report(self) -> str:
        """The memory that the model needs, in one line."""

    def pieces(self, sentence: str, voice: str) -> Sequence[Tokens]:
        """Return the tokens of a sentence, in pieces that the model can speak in one step. Empty if
        the sentence has no sounds, such as punctuation alone. `voice`: see `speak`."""

    def speak(self, piece: Tokens, voice: str, speed: float) -> Samples:
        """Return the samples [S] of a piece, from -1 to 1. `voice`: a name in `info.voices`, or any
        other text for the default voice. `speed`: 2 is twice as fast as 1; ignored by models that
        cannot change it. Raises RuntimeError if the model fails."""

    def close(self) -> None:
        """Release memory and threads. No other method may be called afterwards."""
