"""The report of a quantized model: sizes, types, and what differs from the wish."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.quant.encode.type_names import FLOATS
from penstock.quant.importance import ImportanceMatrix
from penstock.quantizing.folder_plan import FolderPlan, FolderSource, packed_bytes
from penstock.quantizing.quality import Quality
from penstock.quantizing.sources import Floats, Source
from penstock.quantizing.type_plan import PlannedTensor


@dataclass(frozen=True, slots=True)
class Report:
    """A quantized model beside its source.

    - `bits_per_weight`, `source_bits_per_weight`: of all tensors.
    - `types`: type -> the number of its tensors and their bytes.
    - `notes`: sentences about parts that are not written, replaced types, sources that were
      quantized already, and matrices without importances.
    - `quality`: the loss against the source; None if it was not measured.
    """

    size_bytes: int
    source_bytes: int
    bits_per_weight: float
    source_bits_per_weight: float
    types: dict[str, tuple[int, int]]
    notes: tuple[str, ...]
    quality: Quality | None = None


def describe(
    source: Source,
    planned: Sequence[PlannedTensor],
    size_bytes: int,
    importance: ImportanceMatrix | None,
) -> Report:
    """Return the report, without the quality."""
    weights = sum(math.prod(one.target.shape) for one in planned)
    counts = Counter(one.target.type_name for one in planned)
    sizes: Counter[str] = Counter()
    for one in planned:
        sizes[one.target.type_name] += one.target.size_bytes
    before = sum(info.size_bytes for info in source.tensors.values())
    notes = [*source.notes, *_replaced(planned), *_requantized(source, planned)]
    if importance is not None:
        notes += _without_importance(planned, importance)
    return Report(
        size_bytes=size_bytes,
        source_bytes=before,
        bits_per_weight=8 * sum(sizes.values()) / weights,
        source_bits_per_weight=8 * before / weights,
        types={name: (counts[name], sizes[name]) for name in sorted(counts, key=sizes.__getitem__)},
        notes=tuple(notes),
    )


def describe_folder(
    source: FolderSource,
    plan: FolderPlan,
    size_bytes: int,
    importance: Mapping[str, Floats] | None,
) -> Report:
    """Return the report of a folder, without the quality."""
    tensors = source.weights.tensors
    weights = sum(math.prod(info.shape) for info in tensors.values())
    before = sum(info.size_bytes for info in tensors.values())
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for name, info in tensors.items():
        bits = plan.bits.get(name)
        counts["copied" if bits is None else f"int{bits}"] += 1
        if bits is None:
            sizes["copied"] += info.size_bytes
        else:
            sizes[f"int{bits}"] += packed_bytes(info.shape, bits)
    notes = []
    if importance is not None:
        notes += _missing([name for name in plan.bits if name not in importance])
    return Report(
        size_bytes=size_bytes,
        source_bytes=before,
        bits_per_weight=8 * size_bytes / weights,
        source_bits_per_weight=8 * before / weights,
        types={name: (counts[name], sizes[name]) for name in sorted(counts, key=sizes.__getitem__)},
        notes=tuple(notes),
    )


def _replaced(planned: Sequence[PlannedTensor]) -> list[str]:
    replaced = Counter(
        (one.wanted, one.target.type_name, one.target.shape[-1])
        for one in planned
        if one.wanted is not None
    )
    return [
        f"{count} matrices of {columns} columns have type {name} instead of {wanted}: the columns"
        f" make no whole blocks"
        for (wanted, name, columns), count in sorted(replaced.items())
    ]


def _requantized(source: Source, planned: Sequence[PlannedTensor]) -> list[str]:
    again = Counter(
        source.tensors[one.target.name].type_name
        for one in planned
        if not one.kept and source.tensors[one.target.name].type_name not in FLOATS
    )
    return [
        f"{count} matrices were quantized already ({name}); float weights give better answers"
        for name, count in sorted(again.items())
    ]


def _without_importance(
    planned: Sequence[PlannedTensor], importance: ImportanceMatrix
) -> list[str]:
    missing = [
        one.target.name
        for one in planned
        if not one.kept and one.target.type_name not in FLOATS
        if one.target.name not in importance.squares
    ]
    return _missing(missing)


def _missing(names: Sequence[str]) -> list[str]:
    """Return the note about matrices without importances."""
    if not names:
        return []
    return [f"{len(names)} matrices have no importances, such as {names[0]}"]
