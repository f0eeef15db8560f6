"""ISAs are selected once for a processor, a build and the shapes of a model."""

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
    load_selection,
    processor_name,
    save_selection,
)

KEY = IsaSelectionKey("Some CPU", ("avx2", "avx512", "amx"), "1.0-abc", ("heads: 9", "inner: 1536"))
ISAS = IsaSelection("avx512", "avx2", "avx512", (RowRange(7, "avx2"), RowRange(None, "avx512")))
SAVED = SavedIsaSelection(SCHEMA, KEY, "small", ISAS, {"products, 1 rows": 10.5})


def path_of(home: Path) -> Path:
    return home / FOLDER / KEY.file_name


def test_a_saved_selection_is_loaded(tmp_path: Path) -> None:
    assert load_selection(tmp_path, KEY) is None and all_saved(tmp_path) == []
    assert save_selection(tmp_path, SAVED) == SAVED
    assert load_selection(tmp_path, KEY) == SAVED
    assert all_saved(tmp_path) == [SAVED]
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
def test_another_processor_build_or_model_has_its_own_selection(
    tmp_path: Path, other: dict[str, object]
) -> None:
    save_selection(tmp_path, SAVED)
    key = msgspec.structs.replace(KEY, **other)
    assert load_selection(tmp_path, key) is None
    save_selection(tmp_path, msgspec.structs.replace(SAVED, key=key))
    assert load_selection(tmp_path, KEY) == SAVED and len(all_saved(tmp_path)) == 2


def test_the_first_selection_wins(tmp_path: Path) -> None:
    """Two engines may measure at the same time."""
    later = msgspec.structs.replace(SAVED, levels=IsaSelection.all_of("amx"))
    save_selection(tmp_path, SAVED)
    assert save_selection(tmp_path, later) == SAVED
    assert load_selection(tmp_path, KEY) == SAVED


def broken(**fields: object) -> bytes:
    return msgspec.json.encode(msgspec.to_builtins(SAVED) | fields)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100,
        msgspec.json.encode(SAVED)[:-9],
        b"[]",
        broken(schema=SCHEMA + 1),
        broken(levels={"products": "avx512"}),
        broken(levels={"products": "sse2", "attention": "avx2", "other": "avx2"}),
        broken(levels=msgspec.to_builtins(ISAS) | {"linear": [{"most_rows": 7, "level": "avx2"}]}),
        broken(
            levels=msgspec.to_builtins(ISAS)
            | {"linear": [{"most_rows": n, "level": "avx2"} for n in (7, 7, None)]}
        ),
        broken(
            levels=msgspec.to_builtins(ISAS)
            | {"experts": [{"most_rows": n, "level": "avx2"} for n in (-1, None)]}
        ),
        broken(key=msgspec.to_builtins(msgspec.structs.replace(KEY, build="x"))),
    ],
)
def test_an_invalid_file_counts_as_absent_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    save_selection(tmp_path, SAVED)
    path_of(tmp_path).write_bytes(content)
    assert load_selection(tmp_path, KEY) is None
    assert save_selection(tmp_path, SAVED) == SAVED
    assert load_selection(tmp_path, KEY) == SAVED


def test_a_home_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FOLDER).write_bytes(b"a file in the folder's place")
    with caplog.at_level(logging.WARNING):
        assert save_selection(tmp_path, SAVED) == SAVED
    assert "measures the processor again" in caplog.text
    assert load_selection(tmp_path, KEY) is None and all_saved(tmp_path) == []


def test_the_processor_name_contains_its_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\nvendor_id : GenuineIntel\ncpu family : 6\nmodel : 143\n"
        "model name : Some Xeon\nstepping : 8\ncpu MHz : 2000.1\n\nprocessor : 1\nmodel : 9\n"
    )
    assert processor_name(cpuinfo) == "Some Xeon; GenuineIntel; 6; 143; 8"
    assert processor_name(tmp_path / "absent") == "unknown"


def test_the_build_name_contains_a_digest_of_its_kernels(tmp_path: Path) -> None:
    kernels = tmp_path / "_native.so"
    kernels.write_bytes(b"one")
    first = build_name(kernels)
    kernels.write_bytes(b"two")
    assert build_name(kernels) != first
