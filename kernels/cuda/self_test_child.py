"""Child process of `cuda/self_test.py`: tests kernels of the CUDA library on small cases.

The process prints `STARTED`, then one line per kernel: its name and the first error, if any. Usage:
python -m penstock.kernels.cuda.self_test_child LIBRARY DEVICE NAMES WITHOUT. NAMES and WITHOUT are
names of kernels, separated by commas; kernels in WITHOUT are not used.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from penstock.kernels.cases.gpu_layout import as_gpu_inputs, in_float8_cache
from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.cuda import CudaOps, Library, Unavailable, open_library
from penstock.kernels.cuda.launcher import serve_installed
from penstock.kernels.cuda.self_test import DEVICE_LOST, STARTED
from penstock.kernels.ops import all_ops
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.registry import Inputs, Op
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton.linear_choice import staged

# Kernel -> (op, case) that the kernel computes on every device that the library supports.
_CASES = {
    "rms_norm": (("rms_norm", "T2-W1536"), ("add_rms_norm", "T3-W576")),
    "linear": (("linear", "bf16-T1-C576-N30"), ("linear", "bf16-T12-C64-N48")),
    "linear_float8": (
        ("linear", "f8_tile-T1-C384-N200"),
        ("linear", "f8_tile-T16-C256-N128+128-bias"),
        ("linear", "f8_row-T3-C256-N40"),
    ),
    "staged_linear": (
        ("linear", "bf16-T33-C2112-N150"),
        ("linear", "bf16-T64-C1088-N48-bias"),
        ("linear", "bf16-T18-C64-N48"),
        ("linear", "bf16-T100-C1024-N140"),
        ("linear", "f8_tile-T1-C384-N200"),
        ("linear", "f8_tile-T70-C256-N128+256"),
        ("linear", "f8_tile-T33-C1152-N200+56-bias"),
        ("linear", "f8_group-T17-C256-N40+8"),
    ),
    "rope_cache": (("rope_cache", "head-norm"), ("rope_cache", "mixed-9x3x64")),
    "sample": (("sample", "mixed"),),
    "decode_attention": (("attention", "decode-f16"), ("attention", "decode-long-window")),
    "prefill_attention": (("attention", "prompt-f16"), ("attention", "prompt-window-f16")),
}
# Kernels that are also tested with a KV cache of 8-bit floats.
_EIGHT_BITS = ("rope_cache", "decode_attention", "prefill_attention")


def found_error(kernel: str, ops: TorchOps, library: Library) -> str:
    """Describe the first case that the kernel computes wrongly; return "" if all cases are correct.
    A case that another kernel computed is an error too."""
    by_name = {op.name: op for op in all_ops()}
    for op_name, case_name in _CASES[kernel]:
        op = by_name[op_name]
        case = next(case for case in op.cases if case.name == case_name)
        inputs = as_gpu_inputs(case.make_inputs(0), torch.bfloat16)
        forms = [("", inputs, inputs)]
        if kernel in _EIGHT_BITS:
            stored, values = in_float8_cache(inputs["cache"])
            form = ", 8-bit cache"
            forms.append((form, {**inputs, "cache": stored}, {**inputs, "cache": values}))
        for form, given, exact in forms:
            library.called.discard(kernel)
            try:
                with staged() if kernel == "staged_linear" else nullcontext():
                    wrong = _wrong_results(op, given, exact, ops)
            except RuntimeError as error:
                return f"{op_name} {case_name}{form}: {str(error).splitlines()[0]}"
            if wrong:
                return f"{op_name} {case_name}{form}: {wrong} of its results are wrong"
            if kernel not in library.called:
                return f"{op_name} {case_name}{form}: another kernel computed it"
    return ""


def _wrong_results(op: Op, given: Inputs, exact: Inputs, ops: TorchOps) -> int:
    """Return how many results of the op for the inputs `given` differ from the reference's float64
    results for the inputs `exact`."""
    doubled = map_tensors(exact, lambda t: t.double() if t.is_floating_point() else t.clone())
    truth = op.invoke(ReferenceOps(torch.float64), doubled)
    got = op.invoke(ops, map_tensors(given, lambda t: t.clone().to(ops.device)))
    scales = given["cache"].key_scales if "cache" in given else None
    wrong = 0
    for ours, theirs in zip((result.cpu() for result in got), truth, strict=True):
        if ours.dtype == torch.float8_e4m3fn:
            assert scales is not None
            wrong += not _agree(ours.double() * scales[:, None, None], theirs, 2**-4)
        else:
            wrong += not _agree(ours, theirs, 2e-2)
    return wrong


def _agree(ours: torch.Tensor, truth: torch.Tensor, relative: float) -> bool:
    """Return whether the results agree up to rounding. The tolerance grows with the root mean
    square of `truth`, since the rounded terms of a sum have about that size."""
    if not ours.is_floating_point():
        return torch.equal(ours, truth.to(ours.dtype))
    size = max(1.0, float(truth.nan_to_num(posinf=0, neginf=0).square().mean().sqrt()))
    close = torch.isclose(ours.double(), truth, rtol=relative, atol=2e-2 * size, equal_nan=True)
    return bool(close.all())


def main(library: str, device: str, names: str, without: str) -> None:
    rejected = dict.fromkeys(filter(None, without.split(",")), "not used")
    opened = open_library(Path(library))
    if isinstance(opened, Unavailable):
        sys.exit(opened.reason)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)  # streams and modules belong to the current device
        serve_installed(device)
    ops = CudaOps(device, torch.bfloat16, opened, rejected)
    print(STARTED, flush=True)
    for name in names.split(","):
        print(name, found_error(name, ops, opened), flush=True)
        if _device_is_lost(device):
            sys.exit(DEVICE_LOST)


def _device_is_lost(device: str) -> bool:
    """Return whether every later call of this process will fail, as after an illegal address."""
    if not device.startswith("cuda"):
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    main(*sys.argv[1:])
