"""`Ops` over torch tensors, served by the implementations that a `KernelRegistry` chose."""

from __future__ import annotations

from typing import Any

import torch

from penstock.kernels.arrays import tensor_of
from penstock.kernels.cases.random_inputs import map_tensors
from penstock.kernels.lora_slots import SlotSizes
from penstock.kernels.ops_interface import AdapterRows, HeadNorm, LayerCache, StepInputs
from penstock.kernels.persistent_batch import Adjustments, RowState, StepBuffers, Upload
from penstock.kernels.registry import KernelRegistry
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.weights import Experts, Linear, Matrix


class TorchOps:
    """`Ops[torch.Tensor]` on one device, and the samplers. Meanings: `kernels.ops_interface`.

    `dtype` is that of activations and of constants: float32, or float64 for the tests' truth.
    """

    splits_by_rows = False
    """Whether decode attention may cut contexts by the number of rows of a step too, as products
    are chosen by it: a row's last bits then depend on that number."""

    def __init__(
        self, table: KernelRegistry, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        self.table = table
        self.device = device
        self.dtype = dtype

    def pack_linear(self, weight: Linear) -> Any:
        return self._pack("linear", weight)

    def pack_head(self, weight: Linear) -> Any:
        return self.pack_linear(weight)

    def pack_experts(self, weights: Experts) -> Any:
        return self._pack("experts", weights)

    def pack_embedding(self, table: Matrix) -> Any:
        return self._pack("embedding", table)

    def pack_tied(self, table: Matrix) -> tuple[Any, Any]:
        return self.pack_embedding(table), self.pack_head(Linear((table,)))

    def packed_bytes(self, matrix: Matrix) -> int:
        """What a matrix takes on the device: it is packed there for products, and counted."""
        sizes: list[int] = []
        map_tensors(self.pack_head(Linear((matrix,))), lambda tensor: sizes.append(tensor.nbytes))
        return sum(sizes)

    def _pack(self, name: str, weight: Any) -> Any:
        pack = self.table[name].pack
        assert pack is not None, f"{self.table[name].name} {name} has no packing"
        return pack(weight, self.device, self.dtype)

    def constant(self, array: Any) -> torch.Tensor:
        """A numpy array on the device: integers as they are, floats as `dtype`."""
        tensor = tensor_of(array).to(self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def embedding(self, table: Any, tokens: torch.Tensor, scale: float) -> torch.Tensor:
        return self.table["embedding"].call(table, tokens, scale)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return self.table["rms_norm"].call(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table["add_rms_norm"].call(x, residual, weight, eps)

    def layer_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return self.table["layer_norm"].call(x, weight, bias, eps)

    def add_layer_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table["add_layer_norm"].call(x, residual, weight, bias, eps)

    def linear(self, x: torch.Tensor, weight: Any) -> torch.Tensor:
        return self.table["linear"].call(x, weight)

    def adapter_slots(self, sizes: SlotSizes) -> Any:
        return self._pack("lora", sizes)

    def lora(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        slots: Any,
        linear: int,
        rows: AdapterRows[torch.Tensor],
    ) -> torch.Tensor:
        return self.table["lora"].call(x, y, slots, linear, rows)

    def rope_cache(
        self,
        qkv: torch.Tensor,
        rope: torch.Tensor,
        inputs: StepInputs[torch.Tensor],
        cache: LayerCache[torch.Tensor],
        heads: tuple[int, int, int],
        head_norm: HeadNorm | None,
    ) -> torch.Tensor:
        return self.table["rope_cache"].call(qkv, rope, inputs, cache, heads, head_norm)

    def attention(
        self,
        q: torch.Tensor,
        inputs: StepInputs[torch.Tensor],
        cache: LayerCache[torch.Tensor],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.table["attention"].call(q, inputs, cache, heads, scale, window, sinks)

    def bidirectional_attention(
        self,
        q: torch.Tensor,
        inputs: StepInputs[torch.Tensor],
        cache: LayerCache[torch.Tensor],
        heads: tuple[int, int, int],
        scale: float,
        window: int,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        serving = self.table["bidirectional_attention"]
        return serving.call(q, inputs, cache, heads, scale, window, bias)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self.table["silu_mul"].call(gate_up)

    def gelu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self.table["gelu_mul"].call(gate_up)

    def route_experts(
        self, logits: torch.Tensor, per_token: int, renormalize: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table["route_experts"].call(logits, per_token, renormalize)

    def experts(
        self, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, weights: Any
    ) -> torch.Tensor:
        return self.table["experts"].call(x, chosen, shares, weights)

    def gelu_tanh_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self.table["gelu_tanh_mul"].call(gate_up)

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        return self.table["gelu"].call(x)

    def tanh(self, x: torch.Tensor) -> torch.Tensor:
        return self.table["tanh"].call(x)

    def mean_rows(self, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return self.table["mean_rows"].call(x, starts)

    def l2_normalize(self, x: torch.Tensor) -> torch.Tensor:
        return self.table["l2_normalize"].call(x)

    def gather_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.table["gather_rows"].call(x, rows)

    def adjust_logits(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        """See `kernels.sampler_inputs`: [S, V], modified in place -> [S] int32."""
        return self.table["adjust_logits"].call(logits, rows)

    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
        """See `kernels.sampler_inputs`: [S, V], modified in place -> [S] int32."""
        return self.table["sample"].call(logits, rows)

    def top_logprobs(
        self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `kernels.sampler_inputs`: of some rows of adjusted logits [S, V]."""
        return self.table["top_logprobs"].call(logits, rows, tokens, count)

    def update_rows(self, state: RowState[torch.Tensor], upload: Upload[torch.Tensor]) -> None:
        """See `kernels.persistent_batch`: what the host knows joins the state."""
        self.table["update_rows"].call(state, upload)

    def prepare_step(
        self,
        state: RowState[torch.Tensor],
        upload: Upload[torch.Tensor],
        slots: StepBuffers[torch.Tensor],
        chunks: int,
        block_size: int,
    ) -> None:
        """See `kernels.persistent_batch`: the inputs of a step, written to `slots`."""
        self.table["prepare_step"].call(state, upload, slots, chunks, block_size)

    def adjust_rows(
        self,
        logits: torch.Tensor,
        adjust: Adjustments[torch.Tensor],
        rows: torch.Tensor,
        positions: torch.Tensor,
    ) -> None:
        """See `kernels.persistent_batch`: logits [S, V] of rows [S] are changed in place, for the
        tokens sampled
        at `positions: [S]`."""
        self.table["adjust_rows"].call(logits, adjust, rows, positions)

    def append_tokens(
        self,
        state: RowState[torch.Tensor],
        upload: Upload[torch.Tensor],
        context_lens: torch.Tensor,
        tokens: torch.Tensor,
        chunks: int,
    ) -> None:
        """See `kernels.persistent_batch`: sampled tokens join their rows."""
        self.table["append_tokens"].call(state, upload, context_lens, tokens, chunks)
