"""The C++ extension module: CPU kernels, plans and the thread pool. See csrc/bind.

Arrays are numpy arrays. All functions check their arguments and name the wrong argument in the
error: TypeError for a wrong element type, ValueError for a wrong shape, layout or index value,
KeyError for an unknown kernel.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]

def signatures() -> dict[str, str]:
    """Return the signature of each kernel as text; see csrc/bind/call/signature.h."""

def supported_isas() -> list[str]:
    """Return the ISAs, including emulated ISAs, that this build has and this machine can run."""

def attention_partial_floats(heads: int, kv_heads: int, dim: int, max_context: int) -> int:
    """Return the number of floats in the `partials` tensor of the kernel `paged_attention`.

    `dim`: head dimension. `max_context`: most tokens that a block table can hold.
    """

def latent_partial_floats(heads: int, latent: int, max_context: int) -> int:
    """Return the number of floats in the `partials` tensor of the kernel `latent_attention`.

    `max_context`: most tokens that a block table can hold.
    """

def phase_overhead_s(pool: ThreadPool, tasks: int, rounds: int) -> float:
    """Return the mean seconds of a phase of `tasks` empty tasks, over `rounds` phases. Used by the
    thread pool benchmark."""

ENCODED_TYPES: tuple[str, ...]
"""The types of `encode_blocks`."""

def encode_blocks(
    pool: ThreadPool, type: str, weights: Array, importance: Array | None = None
) -> npt.NDArray[np.uint8]:
    """Encode finite float32 `weights` [N, C] as the blocks of a GGML type. `importance` [C]: the
    weight of each column in the error. Raises ValueError for an unknown type and for wrong
    shapes."""

class ThreadPool:
    """Persistent threads that run kernels. `threads` includes the caller. Idle threads sleep."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def stalls(self) -> int:
        """Number of barriers that waited for a thread that the system had descheduled."""

class KernelSet:
    """The kernels that serve a model, from one or several ISAs.

    `isa`: ISA of matrix products, which sets their arithmetic and the format of packed weights;
        "auto" is the widest ISA of the machine.
    `attention`: ISA of the attention kernels; "" means `isa`.
    `other`: ISA of all other kernels; "" means `isa`.
    `by_rows`: for a kernel family ("affine", "dense", "experts", "attention", "other") pairs of
        maximum rows per call (ascending; None: no limit) and an ISA. This ISA serves calls of up
        to that many rows if it gives the same bits as the family's ISA above; otherwise the
        family's ISA serves them.
    `prompts`: ISA with tiles that multiplies prompt tokens by integer weights ("round_rows",
        "linear_prompt"); "" for none.

    Raises ValueError for an ISA that the machine lacks, and for `prompts` without tiles.
    """

    def __init__(
        self,
        isa: str = "auto",
        attention: str = "",
        other: str = "",
        by_rows: Mapping[str, Sequence[tuple[int | None, str]]] = {},
        prompts: str = "",
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def prompts(self) -> str: ...
    def serves(
        self,
        family: str,
        isa: str,
        object: PackedLinear | None = None,
        shared_halves: bool = False,
    ) -> bool:
        """Return whether the kernels of `isa` give the same bits as the family's own ISA.

        `object`: the weights of the products; required for "affine", "dense" and "experts".
        `shared_halves`: for "attention", whether the cache is float16 and several query heads
            share a KV head.
        """
    def call(
        self,
        pool: ThreadPool,
        kernel: str,
        tensors: Sequence[Array],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        object: PackedLinear | PackedExperts | None = None,
    ) -> None:
        """Run one kernel now, with the GIL released. csrc/bind/call/signature.cc lists each
        kernel's arguments."""

class PackedAdapter:
    """A LoRA adapter packed by `AdapterSlots.pack`."""

    @property
    def size_bytes(self) -> int: ...

class AdapterSlots:
    """A fixed number of slots for LoRA adapters, which the kernel `lora` reads; see
    `kernels.lora_slots`.

    `capacity`: number of slots.
    `dtype`: storage type of the factors, "f32", "f16" or "i8".
    `linears`: for each linear layer its input columns, and the output rows of each slice.

    Raises ValueError for sizes that are not supported.
    """

    def __init__(
        self,
        capacity: int,
        max_rank: int,
        dtype: str,
        linears: Sequence[tuple[int, Sequence[int]]],
    ) -> None: ...
    def pack(self, factors: Sequence[tuple[Array, Array] | None]) -> PackedAdapter:
        """Pack the factors (a [Q, C], b [N, Q]) of each slice, with the GIL released. None: the
        adapter does not change the slice. Raises ValueError for factors that do not fit."""

    def install(self, slot: int, adapter: PackedAdapter) -> None:
        """Put a packed adapter into a slot. Raises ValueError for a slot out of range, or for an
        adapter packed for other shapes."""

    def clear(self, slot: int) -> None: ...
    def inner_columns(self, linear: int) -> int: ...

class DryRepetitions:
    """Finds the repetitions of one sequence for the DRY sampler; see
    csrc/cpu/sampling/dry_repetitions.h.

    A repetition ends at the end of the sequence and begins after the last breaker in the sequence.

    `breakers`: pairs of heads, [n] int32 ascending, and a tail, [m] int32. Each head followed by
        the tail is a breaker.
    `longest`: repetitions of more tokens count as this many tokens.
    `size_bytes`: memory of the state; at most `bytes_per_token` per token of a long sequence.

    Raises ValueError for heads that do not ascend.
    """

    bytes_per_token: int
    size_bytes: int
    def __init__(self, breakers: Sequence[tuple[Ints, Ints]], longest: int) -> None: ...
    def extend(self, tokens: Ints) -> None:
        """Append the next tokens of the sequence, [n] int32."""
    @staticmethod
    def append_each(states: list[DryRepetitions | None], tokens: Ints) -> None:
        """Append tokens[i] to states[i]; skip None states and negative tokens."""
    @staticmethod
    def lists(states: list[DryRepetitions | None], least: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the tokens that would extend a repetition of at least least[i] >= 1 tokens.

        Returns starts [S + 1], tokens [N] and lengths [N]. State i has the entries starts[i] to
        starts[i + 1] - 1: tokens in ascending order, and the length of the longest repetition
        that each would extend. Single-token breakers are left out.
        """

class TokenCounts:
    """Counts the tokens of one sequence's answer. The tokens of `prompt`, [n] int32, are listed
    too; occurrences in the prompt are not counted."""

    def __init__(self, prompt: Ints) -> None: ...
    def extend(self, tokens: Ints) -> None:
        """Append the next tokens of the answer, [n] int32."""
    @staticmethod
    def append_each(states: list[TokenCounts | None], tokens: Ints) -> None:
        """Append tokens[i] to states[i]; skip None states and negative tokens."""
    @staticmethod
    def lists(states: list[TokenCounts | None]) -> tuple[Ints, Ints, Ints]:
        """Return starts [S + 1], tokens [N] and counts [N]. State i has the entries starts[i] to
        starts[i + 1] - 1: its distinct tokens in order of first appearance, and their counts."""

class MatrixSource:
    """A matrix to pack, which borrows its C-contiguous arrays. See `kernels.weights`."""

    @staticmethod
    def dense(data: Array, dtype: str) -> MatrixSource: ...
    @staticmethod
    def affine(
        bits: int,
        group: int,
        q: Array,
        scale: Array,
        minimum: Array | None = None,
        zero_point: int = 0,
        super_scale: Array | None = None,
        super_minimum: Array | None = None,
    ) -> MatrixSource: ...

class PackedExperts:
    """The packed experts of a mixture-of-experts layer.

    `gate_up`: two parts per expert, gate and up, or only up; may have biases.
    `down`: one part per expert; may have biases.
    `activation`: "silu", "gelu_tanh", "relu_squared" or "swiglu_oai", which needs gates.
    `shares_scale`: whether shares scale the "output" or the "input" of experts.
    `row_bytes`, `inner_bytes`: bytes of a quantized input row of `gate_up` and of `down`.

    Raises ValueError if the parts differ in shape.
    """

    row_bytes: int
    inner_bytes: int
    size_bytes: int
    def __init__(
        self,
        gate_up: PackedLinear,
        down: PackedLinear,
        activation: str = "silu",
        shares_scale: str = "output",
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, F, W): experts, feed-forward width, model width."""

class PackedLinear:
    """A linear layer or an embedding table, packed for the ISA of `kernels`. Packing runs in
    parallel, with the GIL released.

    `parts`: matrices that share their input; their output columns are concatenated.
    `bias`: [N] float32 of all parts.
    `use`: with "rows", the kernel `embedding` may gather rows from the weights. With
        "rounded_products", products of float16 weights may lose as much as float16 arithmetic. On
        "avx2" and "avx_vnni" only "rows" are exact.
    """

    def __init__(
        self,
        kernels: KernelSet,
        pool: ThreadPool,
        parts: Sequence[MatrixSource],
        bias: Array | None = None,
        use: str = "products",
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def quantized_row_bytes(self) -> int: ...
    @property
    def bf16_row_bytes(self) -> int: ...
    @property
    def rounded_row_bytes(self) -> int:
        """Bytes of an activation row in the formats that dense parts multiply; 0 if they multiply
        float32."""

    @property
    def has_affine(self) -> bool: ...
    @property
    def has_dense(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...

class PlanTensor:
    """A tensor of a plan. `Recorder.finish` assigns its memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the largest step."""
    @property
    def dtype(self) -> str: ...

class Recorder:
    """Records kernel calls into a plan, for steps of at most the given tokens, rows and samples."""

    def __init__(
        self, kernels: KernelSet, max_tokens: int, max_rows: int, max_samples: int
    ) -> None: ...
    def inputs(self, max_blocks: int, further: Sequence[str] = ()) -> list[PlanTensor]:
        """Create the seven inputs of a step, in the order of `kernels.ops_interface.StepInputs`,
        and those with the names `further` (csrc/bind/call/plan_call.h), in their order. May be
        called only once."""
    def empty(self, like: PlanTensor, columns: int, dtype: str = "float32") -> PlanTensor:
        """Create a [rows of `like`, columns] tensor. A call must write the tensor before another
        call reads it."""
    def between(self, starts: PlanTensor, columns: int) -> PlanTensor:
        """Create a float32 tensor with a row per sequence: row r belongs to the interval from
        starts[r] to starts[r + 1]."""
    def scratch(self, extent: int, dtype: str = "float32") -> PlanTensor:
        """Create a vector that has `extent` elements in every step."""
    def call(
        self,
        kernel: str,
        tensors: Sequence[PlanTensor | Array],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        object: PackedLinear | PackedExperts | None = None,
        flags: PlanTensor | None = None,
        value: int = 0,
    ) -> None:
        """Record one kernel call. An array is a constant, or a cache that the kernel updates; the
        plan keeps the array alive. csrc/bind/call/signature.cc lists each kernel's arguments.
        `flags`: an input of zeros and ones; the call computes the rows whose flag is `value`.

        Raises RuntimeError if the call reads a tensor that no recorded call has written.
        """
    def keep(self, tensor: PlanTensor) -> None:
        """Keep the result [rows, columns] of a recorded call until the next run; see `Plan.kept`.
        Raises RuntimeError if no call has written it."""
    def finish(self, pool: ThreadPool, output: PlanTensor, shared: Plan | None = None) -> Plan:
        """Build the plan, whose `run` returns `output`. The plan uses the memory of `shared` if
        that is large enough; the two plans must then not run at the same time. May be called
        again."""

class Plan:
    """A recorded step. Concurrent calls of `run` wait for each other. `profiling`: whether runs
    measure the time of each kernel."""

    profiling: bool
    def run(
        self,
        tokens: Ints,
        positions: Ints,
        slots: Ints,
        query_starts: Ints,
        context_lens: Ints,
        block_tables: Ints,
        sample_rows: Ints,
        further: Sequence[Ints] = (),
    ) -> npt.NDArray[np.float32]:
        """Run the step and return its output, a view that the next run overwrites. Releases the
        GIL for the whole step."""
    def kept(self, index: int) -> npt.NDArray[np.float32]:
        """Return a tensor that `Recorder.keep` was called with, as the last run computed it, a view
        that the next run overwrites. `index` counts these tensors from 0."""
    def profile(self) -> dict[str, tuple[float, int]]:
        """Return (seconds, calls) by kernel name, over all runs with `profiling` on."""
    @property
    def arena_bytes(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
