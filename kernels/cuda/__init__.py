"""CUDA C++ implementations of the ops behind a C ABI, and `CudaOps` over them and Triton's."""

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
    """`TritonOps` in which the CUDA library serves the ops that it has, if it can be loaded.

    `registry.explain()` returns which implementation serves each op and why the others do not;
    `library.tuned(...)` selects another form of the kernels; `rejected` holds the kernels that are
    not used, with reasons.
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
        """`library`: None: the installed one for this torch. `rejected`: kernels of the library
        that must not be used -> reason; if it and `library` are None, all kernels are tested on
        `device` first, and the verdict is kept in the folder `verdicts`. `without`: further kernels
        not to use -> reason. `dense`: see `TritonOps`."""
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
    """Select the forms of the kernels that `kernels/tuning/cuda.json` names for the device."""
    if library.emulated:
        library.tune(tuning_of(EMULATED_CAPABILITY))
    elif device.type == "cuda":
        with torch.cuda.device(device):
            library.tune(tuning_of(capability_of(device)))
