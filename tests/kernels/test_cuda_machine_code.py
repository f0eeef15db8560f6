"""What nvcc makes of the kernels for sm_90a: the instructions that are meant, in registers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton has no build for this platform")

_SOURCES = Path(__file__).parents[2] / "csrc"


@dataclass(frozen=True)
class Code:
    """What ptxas said, and how often which instruction stands in each kernel, by its head size."""

    report: str
    instructions: dict[int, Counter[str]]


@pytest.fixture(scope="module")
def prompt(tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The prompt attention kernels."""
    dump = shutil.which("cuobjdump") or str(
        Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    )
    if shutil.which("nvcc") is None or not Path(dump).exists():
        pytest.skip("there is no nvcc or no cuobjdump")
    cubin = tmp_path_factory.mktemp("code") / "prompt.cubin"
    command = [
        *("nvcc", "-std=c++17", "-O3", f"-I{_SOURCES}", "-Xptxas", "-v", "-cubin"),
        *("-gencode=arch=compute_90a,code=sm_90a", "--Werror=all-warnings", "-o", str(cubin)),
        str(_SOURCES / "cuda" / "attention" / "prompt_attention.cu"),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    listed = subprocess.run([dump, "-sass", str(cubin)], capture_output=True, text=True, check=True)
    kernels = re.split(r"Function : \S*prompt_attention_kernelILi(\d+)E", listed.stdout)[1:]
    instructions = {
        int(dim): Counter(re.findall(r"^\s+/\*\w+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", code, re.M))
        for dim, code in zip(kernels[::2], kernels[1::2], strict=True)
    }
    print(built.stderr)
    return Code(built.stderr, instructions)


def test_no_register_is_spilled(prompt: Code) -> None:
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", prompt.report)
    assert spills == [("0", "0")] * 2
    for counts in prompt.instructions.values():
        assert not [name for name in counts if name.startswith(("LDL", "STL"))]


def test_three_groups_of_threads_fit_a_multiprocessor(prompt: Code) -> None:
    used = [int(count) for count in re.findall(r"Used (\d+) registers", prompt.report)]
    assert len(used) == 2 and all(count * 384 <= 65536 for count in used)
    for counts in prompt.instructions.values():
        assert counts["USETMAXREG.DEALLOC.CTAPOOL"] == 1
        assert counts["USETMAXREG.TRY_ALLOC.CTAPOOL"] == 1


def test_products_are_not_serialised(prompt: Code) -> None:
    assert "serialized" not in prompt.report and "C75" not in prompt.report


@pytest.mark.parametrize("dim", [64, 128])
def test_products_and_copies_are_those_of_the_hardware(prompt: Code, dim: int) -> None:
    counts = prompt.instructions[dim]
    # Scores and outputs stand twice: for the first or the last tile of keys, and in the loop.
    expected: Counter[str] = Counter()
    expected["HGMMA.64x128x16.F32.BF16"] += 2 * dim // 16
    expected[f"HGMMA.64x{dim}x16.F32.BF16"] += 2 * 128 // 16
    assert Counter({k: v for k, v in counts.items() if k.startswith("HGMMA")}) == expected
    assert counts["UTMALDG.4D"] >= 3
    assert not [name for name in counts if name.startswith(("HMMA", "LDGSTS"))]
