"""A choice of levels is made once for a processor, a build and the shapes of a model."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from penstock.kernels.isa.instruction_sets import IsaSelection, RowRange
from penstock.runtime.cpu.saved_isa_selections import (
    FOLDER,
    SCHEMA,
    IsaSelectionKey,
    SavedIsaSelection,
    all_saved,
    build_name,
    keep,
    processor_name,
    recall,
)

KEY = IsaSelectionKey("Some CPU", ("avx2", "avx512", "amx"), "1.0-abc", ("heads: 9", "inner: 1536"))
LEVELS = IsaSelection("avx512", "avx2", "avx512", (RowRange(7, "avx2"), RowRange(None, "avx512")))
KEPT = SavedIsaSelection(SCHEMA, KEY, "small", LEVELS, {"products, 1 rows": 10.5})


def path_of(home: Path) -> Path:
    return home / FOLDER / KEY.file_name


def test_a_choice_is_found_again(tmp_path: Path) -> None:
    assert recall(tmp_path, KEY) is None and all_saved(tmp_path) == []
    assert keep(tmp_path, KEPT) == KEPT
    assert recall(tmp_path, KEY) == KEPT
    assert all_saved(tmp_path) == [KEPT]
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [KEY.file_name]


@pytest.mark.parametrize(
    "other",
    [
        {"processor": "Another CPU"},
        {"levels": ("avx2", "avx512")},
        {"build": "1.1-abc"},
        {"shapes": ("heads: 9",)},
    ],
)
def test_another_processor_build_or_model_has_a_choice_of_its_own(
    tmp_path: Path, other: dict[str, object]
) -> None:
    keep(tmp_path, KEPT)
    key = msgspec.structs.replace(KEY, **other)
    assert recall(tmp_path, key) is None
    keep(tmp_path, msgspec.structs.replace(KEPT, key=key))
    assert recall(tmp_path, KEY) == KEPT and len(all_saved(tmp_path)) == 2


def test_the_first_choice_stands(tmp_path: Path) -> None:
    """Two engines may measure at the same time."""
    later = msgspec.structs.replace(KEPT, levels=IsaSelection.all_of("amx"))
    keep(tmp_path, KEPT)
    assert keep(tmp_path, later) == KEPT
    assert recall(tmp_path, KEY) == KEPT


def broken(**fields: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(KEPT) | fields)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        msgspec.json.encode(KEPT)[:-9],
        b"[]",
        broken(schema=SCHEMA + 1),
        broken(levels={"products": "avx512"}),
        broken(levels={"products": "sse2", "attention": "avx2", "other": "avx2"}),
        broken(
            levels=msgspec.to_builtins(LEVELS) | {"linear": [{"most_rows": 7, "level": "avx2"}]}
        ),
        broken(
            levels=msgspec.to_builtins(LEVELS)
            | {"linear": [{"most_rows": n, "level": "avx2"} for n in (7, 7, None)]}
        ),
        broken(
            levels=msgspec.to_builtins(LEVELS)
            | {"experts": [{"most_rows": n, "level": "avx2"} for n in (-1, None)]}
        ),
        broken(key=msgspec.to_builtins(msgspec.structs.replace(KEY, build="x"))),
    ],
)
def test_a_file_that_cannot_be_meant_counts_as_absent_and_is_replaced(
    tmp_path: Path, content: bytes
) -> None:
    keep(tmp_path, KEPT)
    path_of(tmp_path).write_bytes(content)
    assert recall(tmp_path, KEY) is None
    assert keep(tmp_path, KEPT) == KEPT
    assert recall(tmp_path, KEY) == KEPT


def test_a_home_that_cannot_be_written_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_bytes(b"a file in the folder's place")
    with caplog.at_level(logging.WARNING):
        assert keep(tmp_path, KEPT) == KEPT
    assert "measures the processor again" in caplog.text
    assert recall(tmp_path, KEY) is None and all_saved(tmp_path) == []


def test_a_processor_is_named_by_its_kind(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\n"
        "model name : Some Xeon\nstepping : 8\ncpu MHz : 2000.1\n\nprocessor : 1\nmodel : 9\n"
    )
    assert processor_name(cpuinfo) == "Some Xeon; GenuineIntel; 6; 143; 8"
    assert processor_name(tmp_path / "absent") == "unknown"


def test_a_build_is_named_by_its_kernels(tmp_path: Path) -> None:
    kernels = tmp_path / "_native.so"
    kernels.write_bytes(b"one")
    first = build_name(kernels)
    kernels.write_bytes(b"two")
    assert build_name(kernels) != first
