"""An archive of compiled kernels for one target: a zip file of cubins and their index.

The index (`index.json`) records the source of each kernel and its launch parameters; cubins with
the same content are one member. Knows neither Triton nor a driver.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.kernels.triton.compile.signature import OPTIONS, Signature

FORM = 1
INDEX = "index.json"

_LETTERS = {"i32": "i", "fp32": "f"}
_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled kernel. `source`: hash of its source; `entry`: its name in the cubin;
    `shared_bytes`: dynamic shared memory of a block of `32 * num_warps` threads;
    `scratch_pointers`: additional parameters, which are null. `file`: the member of the archive."""

    signature: Signature
    source: str
    entry: str
    num_warps: int
    shared_bytes: int
    scratch_pointers: int
    file: str

    @property
    def layout(self) -> str:
        """Its parameters, as `struct` packs them."""
        return layout(self.signature.types, self.scratch_pointers)

    @property
    def pointer_words(self) -> int:
        """Bit i is set if the 8 bytes at 8 i of the parameters are a tensor's address."""
        words = 0
        for index, written in enumerate(self.signature.types):
            if written.startswith("*"):
                offset = struct.calcsize(layout(self.signature.types[:index]) + "0Q")
                words |= 1 << (offset // _WORD_BYTES)
        return words


def layout(types: Iterable[str], scratch_pointers: int = 0) -> str:
    """Return the `struct` format of parameters in order, each aligned to its size, then null
    pointers."""
    letters = "".join("Q" if written.startswith("*") else _LETTERS[written] for written in types)
    return f"@{letters}" + (f"0Q{8 * scratch_pointers}x" if scratch_pointers else "")


def write_archive(
    path: Path, target: str, compiler: str, cubins: Iterable[tuple[Cubin, bytes]]
) -> None:
    """Write the kernels and their index, in a fixed order and with fixed dates."""
    kernels, images = [], {}
    for cubin, image in cubins:
        images[cubin.file] = image
        kernels.append(asdict(cubin))
    index = {
        "form": FORM,
        "target": target,
        "compiler": compiler,
        "options": OPTIONS,
        "kernels": kernels,
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, content in [(INDEX, json.dumps(index).encode()), *sorted(images.items())]:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)


def file_of(image: bytes) -> str:
    """Return the member's name for a cubin."""
    return f"{hashlib.sha256(image).hexdigest()[:16]}.cubin"


class Archive:
    """An archive opened from a file. Raises ValueError for a file that is no archive, or of another
    format; OSError if it cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            self._members = zipfile.ZipFile(path)
            index = json.loads(self._members.read(INDEX))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ValueError(f"{path.name} is not an archive of kernels") from error
        if index["form"] != FORM or index["options"] != OPTIONS:
            raise ValueError(f"{path.name} is an archive of another release")
        self.target: str = index["target"]
        self.compiler: str = index["compiler"]
        self.cubins = [_cubin(**kernel) for kernel in index["kernels"]]

    def image(self, cubin: Cubin) -> bytes:
        return self._members.read(cubin.file)


def _cubin(signature: dict[str, Any], **fields: Any) -> Cubin:
    types = tuple(signature.pop("types"))
    constants = tuple((name, value) for name, value in signature.pop("constants"))
    return Cubin(Signature(types=types, constants=constants, **signature), **fields)
