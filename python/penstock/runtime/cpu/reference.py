"""The reference backend: runs the PyTorch reference of each op, which is slow but simple. Imports
torch.

It serves `kernels = "reference"`, for tests and to distinguish a bug of a kernel from a bug of the
model.
"""

from __future__ import annotations

import numpy as np
import torch

from penstock.config import EngineSettings
from penstock.kernels.numpy_bridge import as_tensors
from penstock.kernels.recurrent_state import LayerState
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import StepInputs
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.draft_head import HeadName
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.adapters import slot_adapters
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cpu.reference_mtp import ReferenceMtp, torch_caches
from penstock.runtime.cpu.state_cache import StateCache
from penstock.runtime.cpu.tail_inputs import is_gathered, tail_inputs
from penstock.runtime.media import tower_media
from penstock.runtime.memory import MemoryPlan


class ReferenceBackend:
    """A `Backend` with the reference ops. `memory`: the sizes for which it is built. Raises
    ModelError if the weights cannot be read."""

    tells_prompts_apart = False

    def __init__(
        self,
        model: LoadedModel,
        memory: MemoryPlan,
        settings: EngineSettings,
        progress: Progress | None = None,
    ) -> None:
        self._ops = ReferenceOps()
        self._decoder: Decoder[torch.Tensor] = Decoder(
            model.spec,
            model.weights,
            self._ops,
            memory.max_model_len,
            progress,
            draft_ids=model.own_draft_ids,
        )
        self.caches = torch_caches(memory.cache)
        self.mtp: ReferenceMtp | None = None
        if model.mtp is not None:
            given = self._decoder, self.caches, model.mtp, self._ops, memory.cache
            self.mtp = ReferenceMtp(*given, model.draft_ids)
        self._hidden: torch.Tensor | None = None
        self.adapters = slot_adapters(self._decoder, self._ops, memory.adapter_bytes, settings)
        self.media = tower_media(model, self._ops, _as_rows, torch.inference_mode)
        self.states: list[LayerState[torch.Tensor] | None] = [
            as_tensors(state) for state in StateCache(model.spec.states, memory.states).states
        ]
        self.buffer_bytes = memory.buffer_bytes

    @property
    def weight_bytes(self) -> int:
        return self._decoder.weight_bytes

    @property
    def hidden(self) -> Floats | None:
        return None if self._hidden is None else self._hidden.numpy()

    def logits(self, inputs: StepInputs[Ints], head: HeadName = "whole") -> Floats:
        """Run the forward pass of one step; see `Backend.logits`."""
        tensors: StepInputs[torch.Tensor] = as_tensors(inputs)
        with torch.inference_mode():
            slots = None if self.adapters is None else self.adapters.slots
            whole = head == "whole"
            if self.mtp is None and whole and self._decoder.spec.has_tail and is_gathered(inputs):
                return self._gathered_logits(inputs, tensors)
            given = self._ops, tensors, self.caches, slots, self.states
            if self.mtp is None:
                result = self._decoder.forward(*given, head)
            else:
                result, self._hidden = self._decoder.forward_all(*given)
        logits: Floats = result.numpy()
        return logits

    def _gathered_logits(
        self, inputs: StepInputs[Ints], tensors: StepInputs[torch.Tensor]
    ) -> Floats:
        """Return the logits of a step whose last layers run for the sampled tokens alone."""
        slots = None if self.adapters is None else self.adapters.slots
        streams = self._decoder.trunk(self._ops, tensors, self.caches, slots)
        sampled: StepInputs[torch.Tensor] = as_tensors(tail_inputs(inputs))
        result = self._decoder.tail(self._ops, sampled, streams, self.caches, slots)
        logits: Floats = result.numpy()
        return logits

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        tokens: Ints = self._ops.sample(torch.from_numpy(logits), rows).numpy().astype(np.int32)
        return tokens

    def top_logprobs(
        self, logits: Floats, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        scores, chosen, sampled = (torch.from_numpy(array) for array in (logits, rows, tokens))
        own, ids, values = self._ops.top_logprobs(scores, chosen, sampled, count)
        return own.numpy(), ids.numpy(), values.numpy()

    def prepare(self, used_blocks: int) -> bool:
        """Return False, because there is nothing to prepare. See `Backend.prepare`."""
        return False

    def close(self) -> None:
        self.caches, self.states = [], []
        self.mtp = self._hidden = None


def _as_rows(tensor: torch.Tensor) -> Floats:
    rows: Floats = tensor.to(torch.float32).numpy(force=True).copy()
    return rows
