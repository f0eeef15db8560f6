"""Device memory after each stage of a start, beside the terms of the memory formula
(`penstock.runtime.gpu.memory`), and a check of recordings against them."""

from __future__ import annotations

import itertools
import time
import weakref
from types import TracebackType
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from penstock.runtime.gpu.memory import DeviceMemoryPlan

SLACK_BYTES: Final = 64 << 10
"""Bytes of tolerance: allocators round up, and tensors of a few bytes are in no term."""

UNSPLIT_BYTES: Final = 1 << 20
"""The most that torch's allocator adds to a large tensor, the token counts of all rows: it rounds
up to 2 MiB, and keeps a rest of less than 1 MiB."""

EXACT: Final = 0.01
"""Weights, cache and recurrent states must equal the formula within this share."""

LEAST_USED: Final = 0.1
"""At least this share of a term that is an upper bound must be used; otherwise the term makes the
cache smaller for no reason."""


class LiveBytes(TorchDispatchMode):
    """A context that counts the bytes of the tensors that are alive, on any device: `now`, and
    `peak`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: to be skipped, torch would import all of dynamo, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor):
                self._count(result.untyped_storage())
        return results

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._sizes:
            return
        size = self._sizes[storage] = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


class MemoryStages:
    """Records the allocated memory after each stage of a start that runs inside this context.

    On a CPU it counts tensors, and free memory is unknown.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._live = LiveBytes() if device == "cpu" else None
        self._stages: list[dict[str, Any]] = []
        self._plan: DeviceMemoryPlan | None = None
        self._last = time.perf_counter()

    def __enter__(self) -> MemoryStages:
        if self._live is not None:
            self._live.__enter__()
        self._note("before")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def reached(self, stage: str, plan: DeviceMemoryPlan) -> None:
        """Record a stage. A `penstock.runtime.gpu.load.Observe`."""
        self._plan = plan
        self._note(stage)

    def served(self) -> None:
        """Record the last stage, after steps were run. Its `peak` is that since the stage
        before."""
        self._note("served")

    def found(self) -> dict[str, Any]:
        """Return the recording. `terms`: those of the formula. `stages`: name and seconds of each
        stage, its bytes `allocated`, their `peak` during it and, on a GPU, the bytes `reserved` and
        `free`."""
        assert self._plan is not None, "nothing was started"
        terms = self._plan.terms()
        return {"device": self._device, "terms": terms, "stages": self._stages}

    def _note(self, stage: str) -> None:
        now = time.perf_counter()
        noted = {"stage": stage, "s": round(now - self._last, 3), **self._bytes()}
        self._stages.append(noted)
        self._last = time.perf_counter()

    def _bytes(self) -> dict[str, int]:
        if self._live is not None:
            found = {"allocated": self._live.now, "peak": self._live.peak}
            self._live.peak = self._live.now
            return found
        torch.cuda.synchronize()
        found = {
            "allocated": torch.cuda.memory_allocated(),
            "peak": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "free": torch.cuda.mem_get_info()[0],
        }
        torch.cuda.reset_peak_memory_stats()
        return found


def used(found: dict[str, Any]) -> dict[str, int]:
    """Return the bytes that each term of a recording used.

    `steps`: the memory that attention keeps and the peak of the steps, for which the terms `work`
    and, if steps are captured, `graphs` are meant. `total`: the decrease of free memory, if known.
    """
    stages = {one["stage"]: one for one in found["stages"]}
    names = list(stages)
    grown = {
        name: stages[name]["allocated"] - stages[before]["allocated"]
        for before, name in itertools.pairwise(names)
    }
    rows = stages["rows"]["allocated"]
    peaks = [stages[name]["peak"] for name in ("graph", "served") if name in stages]
    bytes_of = {name: grown[name] for name in ("weights", "cache", "slots", "rows")}
    for name in ("states", "drafter"):  # only models that have them
        if name in grown:
            bytes_of[name] = grown[name]
    bytes_of["steps"] = grown.get("kept", 0) + max(peaks, default=rows) - rows
    if "free" in stages["before"]:
        bytes_of["total"] = stages["before"]["free"] - min(one["free"] for one in found["stages"])
    return bytes_of


def deviations(found: dict[str, Any]) -> list[str]:
    """Return the deviations of a recording from the formula.

    They are weights, cache and recurrent states that differ by more than `EXACT`, and a term that
    is an upper bound and is exceeded, or of which less than `LEAST_USED` is used. Adapter slots
    have an upper bound only: their pages are allocated with the adapters.
    """
    terms, taken = found["terms"], used(found)
    rope = terms["rope"]  # its tables are made together with the weights
    wrong = []
    for name, more in (("weights", rope), ("cache", 0), ("states", 0)):
        if name not in taken:
            continue
        slack = EXACT * terms[name] + SLACK_BYTES
        if not -slack <= taken[name] - terms[name] <= slack + more:
            wrong.append(f"{name}: {taken[name]} bytes, expected {terms[name]}")
    captured = 0 if found["device"] == "cpu" else terms["graphs"]
    unsplit = 0 if found["device"] == "cpu" else UNSPLIT_BYTES
    # Graphs of a drafter, and hidden states for it, belong to its term.
    drafts = terms.get("drafter", 0) - taken.get("drafter", 0)
    if drafts < -SLACK_BYTES:
        wrong.append(f"drafter: {taken['drafter']} bytes of {terms['drafter']}")
    bounds = {"rows": (terms["rows"] + unsplit, 0), "steps": (terms["work"] + captured, drafts)}
    for name, (bound, more) in bounds.items():
        if not LEAST_USED * bound - SLACK_BYTES <= taken[name] <= bound + more + SLACK_BYTES:
            wrong.append(f"{name}: {taken[name]} bytes of {bound}")
    if taken["slots"] > terms["slots"] + terms["adapters"] + SLACK_BYTES:
        wrong.append(f"slots: {taken['slots']} bytes of {terms['slots'] + terms['adapters']}")
    if "total" in taken and taken["total"] > sum(terms.values()):
        wrong.append(f"total: {taken['total']} bytes of {sum(terms.values())}")
    return wrong
