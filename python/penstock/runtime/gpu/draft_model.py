"""A draft model on a device."""

from __future__ import annotations

from typing import Any

import torch

from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.draft_head import HeadName
from penstock.runtime.backend import Ints
from penstock.runtime.gpu.cuda_graphs import Capturer
from penstock.runtime.gpu.draft_steps import Carried, DraftSteps, Results, StepLimits
from penstock.runtime.gpu.model import DeviceModel
from penstock.runtime.gpu.sampler import CpuSampler


class DeviceDraftModel(CpuSampler):
    """A `DraftBackend` over a model on a device, whose logits are tensors there."""

    def __init__(
        self, model: DeviceModel, ops: TorchOps, capturer: Capturer, limits: StepLimits
    ) -> None:
        super().__init__(ops)
        self._model = model
        self.pools = model.pools
        self.steps = DraftSteps(self._forward, capturer, limits, torch.device(ops.device))

    def logits(self, inputs: StepInputs[Ints], head: HeadName = "whole") -> Any:
        """Run the forward pass of one step; see `Backend.logits`. Call this on the stream of the
        steps. The model has no draft head."""
        assert head == "whole"
        return self.steps.run(inputs)[0]

    def close(self) -> None:
        self._model.close()

    def _forward(
        self, inputs: StepInputs[torch.Tensor], carried: Carried | None, one_token: bool
    ) -> Results:
        return self._model.forward(inputs, one_token=one_token)
