"""Implementations of the ops in CUDA C++ behind a C ABI, and `CudaOps`, which combines them with
Triton's implementations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from penstock.kernels.cuda.library import Library, Unavailable, find_library, open_library
from penstock.kernels.cuda.ops import register
from penstock.kernels.cuda.self_test import rejected_kernels
from penstock.kernels.cuda.tuning import EMULATED_CAPABILITY, tuning_of
from penstock.kernels.triton import TritonOps
from penstock.kernels.triton.linear_choice import capability_of

__all__ = ["CudaOps", "Library", "Unavailable", "find_library", "open_library"]


class CudaOps(TritonOps):
    """`TritonOps` that uses the kernels of the CUDA library for the ops that the library
    implements, if the library can be loaded.

    `library`: the CUDA library, or the reason why there is none. `library.tuned(...)` selects other
        variants of its kernels.
    `rejected`: kernels of the library that are not used -> reason.
    `registry`: `registry.explain()` returns which implementation serves each op, and why the other
        implementations do not.
    """

    splits_by_rows = True

    def __init__(
        self,
        device: str = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        library: Library | Unavailable | None = None,
        rejected: Mapping[str, str] | None = None,
        verdicts: Path | None = None,
        dense: Literal["stored", "float8"] = "stored",
        without: Mapping[str, str] | None = None,
    ) -> None:
        """Load the library, test its kernels and register its implementations with the ops.

        `library`: None: the installed library for this version of torch.
        `rejected`: kernels of the library that must not be used -> reason. If `rejected` and
            `library` are both None, all kernels are tested on `device` first.
        `verdicts`: the folder that keeps the results of these tests.
        `without`: further kernels that must not be used -> reason.
        `dense`: see `TritonOps`.
        """
        if library is None:
            library = find_library(torch.version.cuda)
            if rejected is None and isinstance(library, Library):
                rejected = rejected_kernels(library.path, device, verdicts)
        if isinstance(library, Library):
            _tune(library, torch.device(device))
        self.library = library
        self.rejected = {**(rejected or {}), **(without or {})}
        register(library, self.rejected)
        super().__init__(device, dtype, frozenset({"cuda", "triton", "reference"}), dense=dense)


def _tune(library: Library, device: torch.device) -> None:
    """Select the kernel variants that `kernels/tuning/cuda.json` lists for the device."""
    if library.emulated:
        library.tune(tuning_of(EMULATED_CAPABILITY))
    elif device.type == "cuda":
        with torch.cuda.device(device):
            library.tune(tuning_of(capability_of(device)))
