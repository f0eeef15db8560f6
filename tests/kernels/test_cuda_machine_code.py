"""Machine code of the kernels for sm_90a, as nvcc compiles it: the intended instructions, in
registers."""

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


_KERNELS = [(64, "Bf16"), (64, "E4m3"), (128, "Bf16"), (128, "E4m3")]  # by head size and cache
_KEPT_REGISTERS = 40  # registers left to the threads that do not multiply
_LINE = re.compile(r"^\s+/\*(\w+)\*/\s+(@!?U?P\w+ )?([A-Z][\w.]*)([^;]*);", re.M)


@dataclass(frozen=True)
class Instruction:
    """`predicate`: "" if it is always executed."""

    address: int
    predicate: str
    name: str
    operands: str


@dataclass(frozen=True)
class Code:
    """The messages of ptxas, and the instructions of each kernel."""

    report: str
    instructions: dict[tuple[int, str], list[Instruction]]

    def counts(self, kernel: tuple[int, str]) -> Counter[str]:
        return Counter(one.name for one in self.instructions[kernel])


@pytest.fixture(scope="module")
def prompt(tmp_path_factory: pytest.TempPathFactory) -> Code:
    """The prefill attention kernels."""
    dump = shutil.which("cuobjdump") or str(
        Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    )
    if shutil.which("nvcc") is None or not Path(dump).exists():
        pytest.skip("there is no nvcc or no cuobjdump")
    cubin = tmp_path_factory.mktemp("code") / "prompt.cubin"
    command = [
        *("nvcc", "-std=c++17", "-O3", f"-I{_SOURCES}", "-Xptxas", "-v", "-cubin"),
        *("-gencode=arch=compute_90a,code=sm_90a", "--Werror=all-warnings", "-o", str(cubin)),
        str(_SOURCES / "cuda" / "attention" / "prefill_attention.cu"),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    listed = subprocess.run([dump, "-sass", str(cubin)], capture_output=True, text=True, check=True)
    head = r"Function : \S*prefill_attention_kernelILi(\d+)EN\w*?(Bf16|E4m3)E"
    _, *kernels = re.split(head, listed.stdout)
    instructions = {
        (int(dim), cache): [
            Instruction(int(address, 16), predicate, name, operands)
            for address, predicate, name, operands in _LINE.findall(code)
        ]
        for dim, cache, code in zip(kernels[::3], kernels[1::3], kernels[2::3], strict=True)
    }
    print(built.stderr)
    return Code(built.stderr, instructions)


def test_no_register_is_spilled(prompt: Code) -> None:
    assert sorted(prompt.instructions) == _KERNELS
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", prompt.report)
    assert spills == [("0", "0")] * len(_KERNELS)
    for kernel in _KERNELS:
        assert not [name for name in prompt.counts(kernel) if name.startswith(("LDL", "STL"))]


def test_three_groups_of_threads_fit_a_multiprocessor(prompt: Code) -> None:
    used = [int(count) for count in re.findall(r"Used (\d+) registers", prompt.report)]
    assert len(used) == len(_KERNELS) and all(count * 384 <= 65536 for count in used)
    for kernel in _KERNELS:
        counts = prompt.counts(kernel)
        assert counts["USETMAXREG.DEALLOC.CTAPOOL"] == 1
        assert counts["USETMAXREG.TRY_ALLOC.CTAPOOL"] == 1


def _reached(instructions: list[Instruction], start: int) -> list[Instruction]:
    """Return the instructions that may be executed from there on."""
    places = {one.address: index for index, one in enumerate(instructions)}
    seen: set[int] = set()
    left = [start]
    while left:
        index = left.pop()
        if index in seen or index >= len(instructions):
            continue
        seen.add(index)
        one = instructions[index]
        assert not one.name.startswith(("CALL", "BRX", "RET", "JMP")), one
        ends = one.name == "EXIT"
        if one.name.startswith("BRA"):
            target = re.search(r"0x([0-9a-f]+)", one.operands)
            assert target is not None
            left.append(places[int(target.group(1), 16)])
            ends = re.fullmatch(r"\s*0x[0-9a-f]+\s*", one.operands) is not None
        if not ends or one.predicate:
            left.append(index + 1)
    return [instructions[index] for index in seen]


@pytest.mark.parametrize("kernel", _KERNELS)
def test_producer_threads_stay_within_their_registers(
    prompt: Code, kernel: tuple[int, str]
) -> None:
    instructions = prompt.instructions[kernel]
    (start,) = [
        i for i, one in enumerate(instructions) if one.name.startswith("USETMAXREG.DEALLOC")
    ]
    own = _reached(instructions, start)
    stores = sum(one.name.startswith("STS") for one in own)
    assert any(one.name.startswith("UTMALDG") for one in own)
    assert (stores > 0) == (kernel[1] == "E4m3")
    assert not any(one.name.startswith("HGMMA") for one in own)
    registers = [int(r) for one in own for r in re.findall(r"\bR(\d+)\b", one.operands)]
    assert max(registers) < _KEPT_REGISTERS


def test_products_are_not_serialised(prompt: Code) -> None:
    assert "serialized" not in prompt.report and "C75" not in prompt.report


@pytest.mark.parametrize("kernel", _KERNELS)
def test_products_and_copies_are_those_of_the_hardware(
    prompt: Code, kernel: tuple[int, str]
) -> None:
    counts, (dim, _) = prompt.counts(kernel), kernel
    # Scores and outputs exist twice: for the first or the last tile of keys, and in the loop.
    expected: Counter[str] = Counter()
    expected["HGMMA.64x128x16.F32.BF16"] += 2 * dim // 16
    expected[f"HGMMA.64x{dim}x16.F32.BF16"] += 2 * 128 // 16
    assert Counter({k: v for k, v in counts.items() if k.startswith("HGMMA")}) == expected
    assert counts["UTMALDG.4D"] >= 3
    assert not [name for name in counts if name.startswith(("HMMA", "LDGSTS"))]
