"""Maps files into memory, read-only."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError


class MappedFile:
    """The bytes of the file `path`, mapped read-only. Arrays that view them keep the mapping alive.

    Raises ModelError if the file cannot be read or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
        except ValueError:  # an empty file cannot be mapped
            raise ModelError(f"{path}: cannot be read: the file is empty") from None
        self.size = len(self.map)

    def bytes(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        """Return a view of `length` bytes from `offset`. The caller must have checked that they are
        inside the file."""
        assert 0 <= offset <= offset + length <= self.size
        return np.frombuffer(self.map, np.uint8, length, offset)
