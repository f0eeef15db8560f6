"""The first GPU of an engine's settings as a device to tune for. Imports torch."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

import penstock.runtime.gpu.load as gpu_load
from penstock.base.errors import ModelError
from penstock.config import CPU_STEP_SIZES, GPU_STEP_SIZES, EngineSettings
from penstock.kernels.torch_ops import TorchOps
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.gpu.memory import SHARE, DeviceMemoryPlan, cache_item_bytes
from penstock.runtime.protocol import Runtime
from penstock.runtime.weight_quantization import weight_form
from penstock.tune.machine import Values
from penstock.tune.types import MemoryEstimate

_UNLIMITED: Final = 1 << 62


class GpuMachine:
    """A `Machine` that is a GPU.

    - `device`: "cuda:N".
    - `is_served`: the tuned engine would replace one that holds the memory of the GPU now.
    """

    backend: Final[Literal["cpu", "cuda"]] = "cuda"
    cache_dtypes: Final = ("auto", "f8e4m3")
    default_rows: Final = GPU_STEP_SIZES[0].max_num_seqs

    def __init__(self, device: str, *, is_served: bool = False) -> None:
        self.device = device
        free_bytes, self.total_bytes = gpu_load.device_memory(device)
        self._ops: dict[tuple[str | None, str], TorchOps] = {}
        self.free_bytes = int(SHARE * free_bytes)
        self.available_bytes = int(SHARE * self.total_bytes) if is_served else self.free_bytes

    def check(self, settings: EngineSettings) -> None:
        """See `Machine`."""
        weight_form(settings)

    def open(self, files: ModelFiles, settings: EngineSettings, values: Values) -> LoadedModel:
        """See `Machine`."""
        form = weight_form(settings)
        return load_model(files, settings.dtype, float8="float8", form=form, values=values)

    def cache_token_bytes(self, model: LoadedModel, settings: EngineSettings) -> int:
        """See `Machine`."""
        item_bytes = cache_item_bytes(settings)
        return CacheShape(1, 1, model.spec.caches, item_bytes, shares_latents=True).size_bytes

    def weight_bytes(self, model: LoadedModel, files: ModelFiles, settings: EngineSettings) -> int:
        """See `Machine`."""
        ops = self._ops_for(settings)
        return gpu_load.weight_bytes(model, settings, ops)

    def memory(
        self, model: LoadedModel, weight_bytes: int, settings: EngineSettings
    ) -> MemoryEstimate:
        """See `Machine`."""
        try:
            plan = self._plan(model, settings, int(self.available_bytes / SHARE))
        except ModelError:  # it does not fit
            least = msgspec.structs.replace(
                settings, max_num_batched_tokens=CPU_STEP_SIZES.max_num_batched_tokens
            )
            plan = self._plan(model, least, _UNLIMITED)
        cache = plan.cache.size_bytes + plan.states.size_bytes
        other = plan.total_bytes - cache - weight_bytes
        return MemoryEstimate(weight_bytes, cache, other, plan.total_bytes)

    def start(self, model: LoadedModel, settings: EngineSettings) -> Runtime:
        """See `Machine`."""
        runtime = gpu_load.start_gpu_runtime(model, settings, self.device)
        runtime.warm(*{1, settings.max_num_seqs or 1})
        return runtime

    def _ops_for(self, settings: EngineSettings) -> TorchOps:
        alike = settings.quantization, settings.dtype
        if alike not in self._ops:
            self._ops[alike] = gpu_load.open_device(settings, self.device).ops
        return self._ops[alike]

    def _plan(
        self, model: LoadedModel, settings: EngineSettings, free_bytes: int
    ) -> DeviceMemoryPlan:
        ops = self._ops_for(settings)
        return gpu_load.plan_sizes(model, settings, ops, free_bytes)
