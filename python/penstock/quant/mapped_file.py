"""A file mapped read-only, whose every access is checked against its size."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError


class MappedFile:
    """The bytes of `path`. Arrays made of it keep the map alive; it is never unmapped under them.

    Raises ModelError when the file cannot be read or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
        except ValueError:  # what cannot be mapped
            raise ModelError(f"{path}: cannot be read: the file is empty") from None
        self.size = len(self.map)

    def bytes(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """A view of `length` bytes; the caller has checked that they lie in the file."""
        assert 0 <= offset <= offset + length <= self.size
        return np.frombuffer(self.map, np.uint8, length, offset)
