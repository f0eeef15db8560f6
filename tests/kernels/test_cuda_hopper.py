"""The emulation of csrc/cuda/hopper.h: right results of right kernels, and detection of wrong
ones."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from emulated_cuda import compile_emulated

_PROBE = Path(__file__).with_name("hopper_probe.cu")
_NOTHING, _WAIT_FOR_COPY, _WAIT_FOR_PRODUCTS, _EXPECTED_BYTES, _READER, _LATER_PHASE = range(6)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the probe."""
    built = tmp_path_factory.mktemp("hopper") / "probe.so"
    compile_emulated([_PROBE], built)
    return built


def _random(rows: int, columns: int = 128) -> torch.Tensor:
    source = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, generator=source).bfloat16()


def _scores(path: Path, blocks: int, omission: int) -> tuple[torch.Tensor, torch.Tensor]:
    left, right, out = _random(64), _random(128), torch.full((64, 128), float("nan"))
    probe = ctypes.CDLL(str(path)).probe_scores
    places = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (out, left, right)]
    assert probe(*places, blocks, omission) == 0
    return out, left.float() @ right.float().T


@pytest.mark.parametrize("blocks", [1, 2])
def test_product_of_two_copied_matrices(path: Path, blocks: int) -> None:
    out, expected = _scores(path, blocks, _NOTHING)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("columns", [64, 128])
def test_product_of_registers_and_a_matrix_by_rows(path: Path, columns: int, blocks: int) -> None:
    weights, right, out = _random(64), _random(128), torch.full((64, columns), float("nan"))
    probe = ctypes.CDLL(str(path)).probe_outputs
    places = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (out, weights, right)]
    assert probe(*places, columns, blocks) == 0
    expected = weights.float() @ right.float()[:, :columns]
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("omission", "blocks"), [(_WAIT_FOR_COPY, 2), (_WAIT_FOR_PRODUCTS, 1)], ids=["copy", "products"]
)
def test_result_is_wrong_where_a_wait_is_missing(path: Path, omission: int, blocks: int) -> None:
    out, expected = _scores(path, blocks, omission)
    assert not torch.allclose(out, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("omission", "complaint"),
    [
        (_EXPECTED_BYTES, "threads of a block wait for each other"),
        (_LATER_PHASE, "threads of a block wait for each other"),
        (_READER, "a product of fewer than four warps"),
    ],
    ids=["bytes", "phase", "warps"],
)
def test_misuse_aborts_and_is_named(path: Path, omission: int, complaint: str) -> None:
    code = (
        "import ctypes, sys\n"
        "memory = ctypes.create_string_buffer(1 << 17)\n"
        "at = (ctypes.addressof(memory) + 15) // 16 * 16\n"
        "places = [ctypes.c_void_p(at + (i << 15)) for i in range(3)]\n"
        "ctypes.CDLL(sys.argv[1]).probe_scores(*places, 1, int(sys.argv[2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(omission)], capture_output=True, text=True
    )
    assert done.returncode != 0 and complaint in done.stderr
