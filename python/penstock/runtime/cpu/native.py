"""The native CPU backend: packs weights for the instruction set and records a plan of the step,
which the thread pool replays without Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.config import EngineSettings
from penstock.kernels.column_squares import Squares
from penstock.kernels.isa.instruction_sets import IsaSelection
from penstock.kernels.lora_slots import AdapterSlots
from penstock.kernels.native import NativeOps, PlanOps, Pool, plan_arguments
from penstock.kernels.step_inputs import MediaRows, StepInputs
from penstock.models.decoder.decoder import Decoder, Progress
from penstock.models.decoder.draft_head import HeadName
from penstock.models.loader.model_loader import LoadedModel
from penstock.runtime.adapters import slot_adapters
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cpu.kv_cache import KvCache
from penstock.runtime.cpu.media_plans import MediaPlans, rows_of
from penstock.runtime.cpu.native_mtp import NativeMtp
from penstock.runtime.cpu.native_sampling import NativeSampling
from penstock.runtime.cpu.native_tail import NativeTail
from penstock.runtime.cpu.state_cache import StateCache
from penstock.runtime.cpu.tail_inputs import is_gathered
from penstock.runtime.cpu.token_kinds import all_alike, all_generated
from penstock.runtime.media import TowerMedia, tower_media
from penstock.runtime.memory import MemoryPlan
from penstock.scheduler import MAX_DRAFT_TOKENS

MAX_HEAD_DIM: Final = 1024


class NativeBackend(NativeSampling):
    """A `Backend` with native kernels. `memory`: the sizes for which it is built.

    Raises ModelError if the weights cannot be read, or if the kernels do not support the model's
    sizes or the `block_size` of the settings.
    """

    def __init__(
        self,
        model: LoadedModel,
        memory: MemoryPlan,
        settings: EngineSettings,
        progress: Progress | None = None,
        isas: IsaSelection | None = None,
        pool: Pool | None = None,
        predecessor: NativeBackend | None = None,
    ) -> None:
        """Pack the weights and record the plans.

        - `isas`: None for the widest ISA of the CPU.
        - `pool`: the threads of another backend, with which it takes turns; None: its own.
        - `predecessor`: a backend of the same model with other weights, whose threads, caches,
          recurrent states, towers and step buffers it takes over. It packs on the calling thread
          alone, while the predecessor may go on to serve.
        """
        check_block_size(settings.block_size)
        for size in {size for size in model.spec.caches if size is not None}:
            check_head_dim(model.model_id, size.key_dim)
            check_head_dim(model.model_id, size.value_dim)
        if predecessor is not None:
            pool = predecessor.pool
        self.pool: Pool = pool or Pool(settings.threads or available_cores())
        packer = NativeOps.eager(self.pool if predecessor is None else Pool(1), isas)
        self._ops = packer.on(self.pool)
        if predecessor is None:
            self._kv_cache = KvCache(memory.cache)
            self.states = StateCache(model.spec.states, memory.states).states
        else:
            self._kv_cache, self.states = predecessor._kv_cache, predecessor.states
        self.caches = self._kv_cache.caches
        try:
            self._decoder: Decoder[Any] = Decoder(
                model.spec,
                model.weights,
                packer,
                memory.max_model_len,
                progress,
                draft_ids=model.own_draft_ids,
            )
            draft_head = self._decoder.shared.draft_head
            drafts_only = 0 if draft_head is None else int(draft_head.size_bytes)
            self._weight_bytes = packer.packed_bytes - drafts_only
            self.mtp: NativeMtp | None = None
            if model.mtp is not None:
                given = self._decoder, self.caches, model.mtp, self._ops, memory
                self.mtp = NativeMtp(*given, model.draft_ids)
            self.adapters = slot_adapters(self._decoder, self._ops, memory.adapter_bytes, settings)
            self.media: TowerMedia[Any] | None = (
                tower_media(model, self._ops, rows_of) if predecessor is None else predecessor.media
            )
            self._memory = memory
            recorded = [self._record(None)]
            if self.adapters is not None:
                recorded.append(self._record(self.adapters.slots))
            drafts = self.mtp is None and model.draft_ids is not None
            if drafts:
                recorded.append(self._record(None, head="draft"))
            shared = None if predecessor is None else predecessor._plan
            plain, *further = finish_together(recorded, shared)
            self._plan: Any = plain
            self._adapter_plan: Any = None if self.adapters is None else further[0]
            self._draft_plan: Any = further[-1] if drafts else None
            self._tail, self._adapter_tail = self._record_tails()
            self._media_plans = MediaPlans(self._plan, self._record)
            self._hidden: Floats | None = None
            self._collecting: NativeOps | None = None
            if self.mtp is not None:
                self.mtp.record(self._plan)
        except ValueError as refusal:
            raise ModelError(
                f"{model.model_id}: not supported by the CPU kernels: {refusal}"
            ) from None

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def buffer_bytes(self) -> int:
        return int(self._plan.arena_bytes)

    @property
    def tells_prompts_apart(self) -> bool:
        return self._ops.tells_prompts_apart

    @property
    def hidden(self) -> Floats | None:
        return self._hidden

    def logits(self, inputs: StepInputs[Ints], head: HeadName = "whole") -> Floats:
        """Run the forward pass of one step; see `Backend.logits`. Returns a view of the plan's
        memory. Steps with and without adapters or media have separate plans, which use the same
        memory. Plans with media are recorded when they are first needed. If the last layers only
        read caches, a step that samples some of its tokens runs as two plans; see `NativeTail`.
        While the inputs of linear layers are collected, steps run kernel by kernel. Without
        `inputs.is_prompt`, all tokens count as generated."""
        if self.tells_prompts_apart != (inputs.is_prompt is not None):
            inputs = all_generated(inputs) if self.tells_prompts_apart else all_alike(inputs)
        if self._collecting is not None:
            return self._collected_logits(self._collecting, inputs)
        if head == "draft":
            drafted: Floats = self._draft_plan.run(*plan_arguments(inputs))
            return drafted
        tail = self._tail if inputs.adapters is None else self._adapter_tail
        if tail is not None and is_gathered(inputs):
            return tail.logits(inputs)
        if inputs.media is not None:
            own = None if self.adapters is None or inputs.adapters is None else self.adapters.slots
            plan = self._media_plans.get(own, inputs.media)
        else:
            plan = self._plan if inputs.adapters is None else self._adapter_plan
        logits: Floats = plan.run(*plan_arguments(inputs))
        if self.mtp is not None:
            self._hidden = plan.kept(0)
        return logits

    def eager_logits(self, inputs: StepInputs[Ints]) -> Floats:
        """Compute the result of `logits` kernel by kernel instead of replaying a plan, to debug the
        plan."""
        slots = None if self.adapters is None else self.adapters.slots
        logits: Floats = self._decoder.forward(self._ops, inputs, self.caches, slots, self.states)
        return logits

    def collect(self, squares: Squares | None) -> None:
        """Add the squares of the inputs of all linear layers and experts of later steps to
        `squares`, of all tokens; None: stop. Call this between steps. Steps have the same bits
        meanwhile, and take longer."""
        self._collecting = None if squares is None else self._ops.collecting(squares)

    def _collected_logits(self, ops: NativeOps, inputs: StepInputs[Ints]) -> Floats:
        slots = None if self.adapters is None else self.adapters.slots
        given = inputs, self.caches, slots, self.states
        logits: Floats
        logits, hidden = self._decoder.forward_all(ops, *given)
        if self.mtp is not None:
            self._hidden = hidden
        return logits

    def prepare(self, used_blocks: int) -> bool:
        """Allocate memory of the KV cache ahead of its use; see `Backend.prepare`."""
        prepared = self._kv_cache.prepare(used_blocks)
        return prepared or (self.mtp is not None and self.mtp.prepare(used_blocks))

    def close(self) -> None:
        """Release the plans, which hold the weights and the KV cache."""
        del self._plan, self._adapter_plan, self._draft_plan, self._media_plans
        del self._hidden, self.mtp
        del self._tail, self._adapter_tail
        del self._decoder, self.adapters, self.media, self._kv_cache
        self.caches, self.states = [], []

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """The most tokens, rows, samples and blocks of a row in a step."""
        memory = self._memory
        max_rows = min(memory.sizes.max_num_seqs, memory.step_tokens)
        max_blocks = -(-memory.max_model_len // memory.cache.block_size)
        max_samples = min(max_rows + MAX_DRAFT_TOKENS, memory.step_tokens)
        return memory.step_tokens, max_rows, max_samples, max_blocks

    def _record_tails(self) -> tuple[NativeTail | None, NativeTail | None]:
        """Return the plans for steps without and with adapters that run the last layers for the
        sampled tokens alone; None if there are no such layers or no such steps."""
        if self.mtp is not None or not self._decoder.spec.has_tail:
            return None, None
        given = self._decoder, self._ops, self._sizes, self.caches
        plain = NativeTail(*given, None, self._plan)
        if self.adapters is None:
            return plain, None
        return plain, NativeTail(*given, self.adapters.slots, self._plan)

    def _record(
        self,
        slots: AdapterSlots | None,
        media: MediaRows[Ints] | None = None,
        head: HeadName = "whole",
    ) -> tuple[PlanOps, Any]:
        recorder = self._ops.recorder(
            *self._sizes,
            adapters=slots is not None,
            media=media,
            states=self._decoder.spec.is_recurrent,
            kinds=self.tells_prompts_apart,
        )
        given = recorder.inputs, self.caches, slots, self.states
        if self.mtp is None:
            return recorder, self._decoder.forward(recorder, *given, head)
        logits, hidden = self._decoder.forward_all(recorder, *given)
        recorder.keep(hidden)
        return recorder, logits


def finish_together(recorded: Sequence[tuple[PlanOps, Any]], shared: Any = None) -> list[Any]:
    """Return the plans of several pairs (recorder, output). All plans use the memory of the largest
    one, or that of the plan `shared` if it is large enough, so they must not run at the same
    time."""
    plans = [recorder.finish(output, shared) for recorder, output in recorded]
    largest = max(plans, key=lambda plan: int(plan.arena_bytes))
    return [
        plan if plan is largest else recorder.finish(output, largest)
        for plan, (recorder, output) in zip(plans, recorded, strict=True)
    ]


def check_head_dim(model_id: str, head_dim: int) -> None:
    """Raise ModelError if the attention kernels do not support `head_dim`. Called before weights
    are read."""
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        raise ModelError(
            f"{model_id}: head_dim is {head_dim}; the CPU kernels support multiples of 8 up to"
            f" {MAX_HEAD_DIM}"
        )


def check_block_size(block_size: int) -> None:
    """Raise ModelError unless every ISA supports `block_size`, so that a setting that works on one
    machine works on all."""
    if block_size % 16 or (64 % block_size and block_size % 64):
        raise ModelError(
            f"block_size is {block_size}; the CPU kernels support 16, 32 and multiples of 64"
        )
