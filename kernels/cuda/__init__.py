"""CUDA C++ implementations of the ops behind a C ABI, and `CudaOps` over them and Triton's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from penstock.kernels.cuda.library import Declined, Library, find_library, open_library
from penstock.kernels.cuda.ops import register
from penstock.kernels.cuda.self_test import declined as declined_kernels
from penstock.kernels.cuda.tuning import EMULATED_CAPABILITY, tuning_of
from penstock.kernels.triton import TritonOps
from penstock.kernels.triton.linear_choice import capability_of

__all__ = ["CudaOps", "Declined", "Library", "find_library", "open_library"]


class CudaOps(TritonOps):
    """`TritonOps` in which the CUDA library serves what it has, where it can be loaded.
    `table.explain()` says of each op what serves and why the others do not; `library.tuned(...)`
    tries another form of the kernels; `declined` says why which of them are not used."""

    splits_by_rows = True

    def __init__(
        self,
        device: str = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        library: Library | Declined | None = None,
        declined: Mapping[str, str] | None = None,
        trials: Path | None = None,
        dense: Literal["stored", "float8"] = "stored",
        without: Mapping[str, str] | None = None,
    ) -> None:
        """`library`: the installed one for this torch where it is None. `declined`: why which of
        its kernels are not used; where both are None they are tried on `device` first, and what is
        found is kept in the folder `trials`. `without`: why which others are not used
        either. `dense`: see `TritonOps`."""
        if library is None:
            library = find_library(torch.version.cuda)
            if declined is None and isinstance(library, Library):
                declined = declined_kernels(library.path, device, trials)
        if isinstance(library, Library):
            _tune(library, torch.device(device))
        self.library = library
        self.declined = {**(declined or {}), **(without or {})}
        register(library, self.declined)
        super().__init__(device, dtype, frozenset({"cuda", "triton", "reference"}), dense=dense)


def _tune(library: Library, device: torch.device) -> None:
    """Choose the forms of the kernels that the table names for the device."""
    if library.emulated:
        library.tune(tuning_of(EMULATED_CAPABILITY))
    elif device.type == "cuda":
        with torch.cuda.device(device):
            library.tune(tuning_of(capability_of(device)))
