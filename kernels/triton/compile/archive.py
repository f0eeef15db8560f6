"""Archives of compiled kernels, one per target: a zip file of cubins and their index.

The index (`index.json`) records the source hash and the launch parameters of each kernel. Cubins
with the same content are stored once. Needs neither Triton nor a GPU driver.
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
    """A compiled kernel in an archive.

    `signature`: the launches that the kernel serves.
    `source`: hash of the kernel's source.
    `entry`: name of the kernel in the cubin.
    `num_warps`: warps of a block, 32 threads each.
    `shared_bytes`: dynamic shared memory of a block.
    `scratch_pointers`: number of additional pointer parameters, which are null.
    `file`: name of the cubin in the archive.
    """

    signature: Signature
    source: str
    entry: str
    num_warps: int
    shared_bytes: int
    scratch_pointers: int
    file: str

    @property
    def layout(self) -> str:
        """`struct` format of the kernel's parameters."""
        return layout(self.signature.types, self.scratch_pointers)

    @property
    def pointer_words(self) -> int:
        """Bit mask of the pointers: bit i is set if the 8 bytes at offset 8 i of the parameters are
        the address of a tensor."""
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
    """Write the cubins and their index to `path`, in a fixed order and with fixed dates."""
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
    """Return the file name of the cubin `image` in an archive: a hash of its content."""
    return f"{hashlib.sha256(image).hexdigest()[:16]}.cubin"


class Archive:
    """An archive of compiled kernels, opened from a file. Raises ValueError if the file is not such
    an archive or was written by another release, OSError if it cannot be read."""

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
