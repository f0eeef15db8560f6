"""GPU runtimes on CPU tensors: with the reference ops, or with Triton kernels in the
interpreter."""

from __future__ import annotations

from pathlib import Path

import torch

from penstock.config import EngineSettings
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.torch_ops import TorchOps
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.drafts.load import mtp_of, open_drafter
from penstock.runtime.gpu.drafters import size_drafter
from penstock.runtime.gpu.load import build_runtime
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.runtime.weight_quantization import weight_form
from tests.support.triton_interpreter import INTERPRETED

FREE_BYTES = 1 << 30


def gpu_ops_on_cpu(settings: EngineSettings) -> TorchOps:
    if not INTERPRETED:
        return ReferenceOps()
    from penstock.kernels.triton import TritonOps

    products = "invariant" if settings.deterministic else "measured"
    return TritonOps("cpu", torch.float32, products=products)


def start_gpu_runtime_on_cpu(path: Path, settings: EngineSettings) -> GpuRuntime:
    """Return the runtime that a GPU would have, on the CPU."""
    torch.set_num_threads(1)  # more threads slow each other down at these sizes
    files = files_at(path, path.name) if path.is_dir() else ModelFiles(path.name, "gguf", path)
    form, mtp = weight_form(settings), mtp_of(settings)
    model = load_model(files, settings.dtype, float8="float8", form=form, mtp=mtp)
    drafts = open_drafter(files, model, settings, None, "float8")
    ops = gpu_ops_on_cpu(settings)
    drafter = size_drafter(drafts, settings, ops)
    memory = plan_device_memory(model.spec, 1 << 20, settings, FREE_BYTES, drafter)
    return build_runtime(model, memory, settings, ops, drafts=drafts)
