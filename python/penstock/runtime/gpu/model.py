"""A model on a device: packed weights, KV cache, recurrent states and forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from penstock.config import EngineSettings
from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.recurrent_state import LayerState
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.torch_ops import TorchOps
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.mtp_layer import mtp_decoder
from penstock.models.decoder.predicting_head import HeadWeights, pack_predicting_head
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.adapters import SlotAdapters, slot_adapters
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.gpu.attention_plans import attention_plans
from penstock.runtime.gpu.cuda_graphs import Capturer
from penstock.runtime.gpu.draft_steps import StepLimits
from penstock.runtime.gpu.head import DeviceHead
from penstock.runtime.gpu.kv_pools import KvPools
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS
from penstock.runtime.state_arrays import array_shapes, layer_states
from penstock.runtime.state_memory import NO_STATES, StateMemory


class DeviceModel:
    """A model on a device, with its KV cache, its recurrent states and its forward pass.

    `cache`: sizes of the KV cache.
    `states`: sizes of the recurrent states.
    `max_rows`: most rows of a step.
    `max_model_len`: most tokens of a sequence.
    `reads_hidden`: a drafter reads the hidden states of all tokens, so `forward` returns them.
    `communicator`: connects the ranks of a tensor-parallel model.
    `on_stage`: called after the allocation of the weights, of the KV cache, of the recurrent states
    (if there are any), and of the memory of decode attention.

    Raises ModelError if the weights cannot be read.
    """

    def __init__(
        self,
        model: LoadedModel,
        ops: TorchOps,
        cache: CacheShape,
        cache_dtype: torch.dtype,
        *,
        max_rows: int,
        max_model_len: int,
        states: StateMemory = NO_STATES,
        reads_hidden: bool = False,
        progress: Progress | None = None,
        communicator: Communicator[torch.Tensor] = SINGLE_RANK,
        on_stage: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self._ops = ops
        self._reads_hidden = reads_hidden
        self._decoder: Decoder[torch.Tensor] = Decoder(
            model.spec, model.weights, ops, max_model_len, progress, communicator
        )
        if torch.device(ops.device).type == "cuda":
            torch.cuda.empty_cache()  # free the packing buffers: the KV cache needs one large piece
        on_stage("weights")
        self.pools = KvPools(cache, cache_dtype, ops.device)
        on_stage("cache")
        self._states: list[LayerState[torch.Tensor] | None] = layer_states(
            model.spec.states,
            (
                torch.zeros(shape, device=ops.device)
                for layer in model.spec.states
                if layer is not None
                for shape in array_shapes(layer, states)
            ),
        )
        if model.spec.is_recurrent:
            on_stage("states")
        self.adapters: SlotAdapters | None = None
        self._work = attention_plans(model.spec, ops, max_rows, max_model_len, cache.block_size)
        on_stage("kept")

    def make_slots(self, settings: EngineSettings, max_bytes: int) -> None:
        """Allocate the adapter slots that the settings request. `max_bytes`: most memory of all
        installed adapters together."""
        self.adapters = slot_adapters(self._decoder, self._ops, max_bytes, settings)

    @property
    def weight_bytes(self) -> int:
        return self._decoder.weight_bytes

    @property
    def work_bytes(self) -> int:
        """Memory of decode attention for the partial results of long contexts, in bytes."""
        return 0 if self._work is None else self._work.size_bytes

    def logits(self, inputs: StepInputs[torch.Tensor], *, one_token: bool) -> torch.Tensor:
        """Run the forward pass. Return the logits [S, V] float32 of the tokens
        `inputs.sample_rows`. `one_token`: see `forward`."""
        return self.forward(inputs, one_token=one_token)[0]

    def forward(
        self, inputs: StepInputs[torch.Tensor], *, one_token: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run the forward pass. Return the logits [S, V] float32 of the tokens
        `inputs.sample_rows`, and the final hidden states [T, W] if a drafter reads them.

        `one_token`: every chunk has one token, and the inputs are at the same addresses as in the
        last such step.
        """
        if self._work is not None:
            inputs = replace(inputs, work=self._work.prepare(inputs, one_token))
        slots = None if self.adapters is None else self.adapters.slots
        step = (self._ops, inputs, self.pools.caches, slots, self._states)
        if not self._reads_hidden:
            return self._decoder.forward(*step).float(), None
        logits, hidden = self._decoder.forward_all(*step)
        return logits.float(), hidden

    def make_head(
        self,
        weights: HeadWeights,
        cache: CacheShape,
        cache_dtype: torch.dtype,
        capturer: Capturer,
        limits: StepLimits,
        max_model_len: int,
    ) -> DeviceHead:
        """Pack an MTP head and allocate its KV cache `cache`. `limits`: those of its steps. Raises
        ModelError if the weights cannot be read."""
        target, ops = self._decoder, self._ops
        spec = mtp_decoder(target.spec)
        return DeviceHead(
            pack_predicting_head(target, weights, ops),
            ops,
            KvPools(cache, cache_dtype, ops.device),
            self.pools.caches,
            attention_plans(spec, ops, HEAD_TOKENS, max_model_len, cache.block_size),
            capturer,
            limits,
            target.spec.hidden_size,
        )

    def close(self) -> None:
        self._states = []
        self.adapters = self._work = None
        del self._decoder, self.pools
