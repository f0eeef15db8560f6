"""The C++ extension module: CPU kernels, plans and the thread pool. See csrc/bind.

Arrays are numpy arrays. Every argument is checked, and errors name it: TypeError for a wrong
element type, ValueError for a wrong shape, layout or index value, KeyError for an unknown kernel.
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
    """Return the ISAs that this build has and this machine can run, including emulated ones."""

def attention_partial_floats(heads: int, kv_heads: int, dim: int, max_context: int) -> int:
    """Return the extent of the `partials` tensor of `paged_attention`."""

def phase_overhead_s(pool: ThreadPool, tasks: int, rounds: int) -> float:
    """Return the mean seconds of a phase of empty tasks. Used by the thread pool benchmark."""

class ThreadPool:
    """Persistent kernel threads. `threads` includes the caller. Idle threads sleep."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def stalls(self) -> int:
        """Number of barriers that waited for a thread descheduled by the system."""

class KernelSet:
    """The kernels that serve a model: those of one ISA, or of several.

    `isa` sets the arithmetic of matrix products and the format of packed weights; "auto" is the
    widest ISA of the machine. `attention` and `other` set the ISA of attention and of all other
    kernels; "" means `isa`. `by_rows` maps a kernel family ("affine", "dense", "experts",
    "attention", "other") to pairs of maximum rows per call (None: no limit), ascending, and an ISA
    that serves such calls if it gives the same bits; otherwise the family's own ISA serves. Raises
    ValueError for an ISA that the machine lacks.
    """

    def __init__(
        self,
        isa: str = "auto",
        attention: str = "",
        other: str = "",
        by_rows: Mapping[str, Sequence[tuple[int | None, str]]] = {},
    ) -> None: ...
    @property
    def isa(self) -> str: ...
    def serves(
        self,
        family: str,
        isa: str,
        object: PackedLinear | None = None,
        shared_halves: bool = False,
    ) -> bool:
        """Return whether `isa` gives the same bits as the family's own ISA: products with `object`,
        or attention; `shared_halves`: over a float16 cache with shared KV heads."""
    def call(
        self,
        pool: ThreadPool,
        kernel: str,
        tensors: Sequence[Array],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        object: PackedLinear | PackedExperts | None = None,
    ) -> None:
        """Run one kernel now, with the GIL released. csrc/bind/call/signature.cc lists the
        arguments."""

class PackedAdapter:
    """A LoRA adapter packed by `AdapterSlots.pack`."""

    @property
    def size_bytes(self) -> int: ...

class AdapterSlots:
    """The operand of the LoRA kernels: see `kernels.lora_slots`. `dtype`: "f32", "f16" or "i8".
    `linears`: for each linear layer its columns, and the rows of each slice. Raises ValueError for
    sizes that are not supported."""

    def __init__(
        self,
        capacity: int,
        max_rank: int,
        dtype: str,
        linears: Sequence[tuple[int, Sequence[int]]],
    ) -> None: ...
    def pack(self, factors: Sequence[tuple[Array, Array] | None]) -> PackedAdapter:
        """Pack the factors (a, b) of each slice, with the GIL released. Raises ValueError for
        factors that do not fit."""

    def install(self, slot: int, adapter: PackedAdapter) -> None:
        """Raises ValueError for a slot out of range, or an adapter packed for other shapes."""

    def clear(self, slot: int) -> None: ...
    def inner_columns(self, linear: int) -> int: ...

class DryRepetitions:
    """Repetition state of one sequence for the DRY sampler; see
    csrc/cpu/sampling/dry_repetitions.h.

    A match ends at the end of the sequence and begins after the last breaker in it. `breakers` are
    pairs of heads, [n] int32, and a tail, [n] int32: each head followed by the tail is a breaker.
    Lengths above `longest` count as `longest`. Raises ValueError for heads that do not ascend.
    `size_bytes` is at most `bytes_per_token` per token of a long sequence.
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
        """Return starts [S + 1], tokens [N] and lengths [N]: for each state the tokens, ascending,
        that would extend a repetition of at least least[i] >= 1 tokens, and the length of the
        longest one. Single-token breakers are left out."""

class TokenCounts:
    """The distinct tokens of one sequence and their counts in the answer. Tokens of `prompt` count
    as seen, with count 0."""

    def __init__(self, prompt: Ints) -> None: ...
    def extend(self, tokens: Ints) -> None:
        """Append the next tokens of the answer, [n] int32."""
    @staticmethod
    def append_each(states: list[TokenCounts | None], tokens: Ints) -> None:
        """Append tokens[i] to states[i]; skip None states and negative tokens."""
    @staticmethod
    def lists(states: list[TokenCounts | None]) -> tuple[Ints, Ints, Ints]:
        """Return starts [S + 1], tokens [N] and counts [N] of each state, in order of first
        appearance."""

class MatrixSource:
    """A matrix to pack. Borrows its C-contiguous arrays. See `kernels.weights`."""

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
    """The packed experts of a mixture-of-experts layer. `gate_up` holds gate and up of each expert
    in turn, `down` one part per expert; each may have biases. `activation`: "silu" or "swiglu_oai".
    Raises ValueError if the parts differ in shape. `row_bytes` and `inner_bytes`: bytes of a
    quantized input row of `gate_up` and of `down`."""

    row_bytes: int
    inner_bytes: int
    size_bytes: int
    def __init__(
        self, gate_up: PackedLinear, down: PackedLinear, activation: str = "silu"
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, F, W): experts, feed-forward width, model width."""

class PackedLinear:
    """Weights packed for an ISA, in parallel and with the GIL released. `rows`: the kernel
    `embedding` may gather rows from them."""

    def __init__(
        self,
        kernels: KernelSet,
        pool: ThreadPool,
        parts: Sequence[MatrixSource],
        bias: Array | None = None,
        rows: bool = False,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def quantized_row_bytes(self) -> int: ...
    @property
    def has_affine(self) -> bool: ...
    @property
    def has_dense(self) -> bool: ...
    @property
    def size_bytes(self) -> int: ...

class PlanTensor:
    """A tensor of a plan. Its memory is assigned by `Recorder.finish`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape at the largest step."""
    @property
    def dtype(self) -> str: ...

class Recorder:
    """Records kernel calls into a plan for steps of at most these sizes."""

    def __init__(
        self, kernels: KernelSet, max_tokens: int, max_rows: int, max_samples: int
    ) -> None: ...
    def inputs(self, max_blocks: int, adapters: bool = False) -> list[PlanTensor]:
        """Create the seven inputs of a step, in the order of `kernels.ops_interface.StepInputs`,
        and with `adapters` the five inputs of adapter groups. May be called only once."""
    def empty(self, like: PlanTensor, columns: int, dtype: str = "float32") -> PlanTensor:
        """Create a [rows of `like`, columns] tensor, undefined until a call writes it."""
    def between(self, starts: PlanTensor, columns: int) -> PlanTensor:
        """Create a float32 tensor with a row per sequence, i.e. per interval of `starts`."""
    def scratch(self, extent: int, dtype: str = "float32") -> PlanTensor:
        """Create a vector whose extent is the same in every step."""
    def call(
        self,
        kernel: str,
        tensors: Sequence[PlanTensor | Array],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        object: PackedLinear | PackedExperts | None = None,
    ) -> None:
        """Record one call. Arrays are constants or caches that the kernel updates; the plan keeps
        them alive.

        Raises RuntimeError if the call reads a tensor that no recorded call has written."""
    def finish(self, pool: ThreadPool, output: PlanTensor, shared: Plan | None = None) -> Plan:
        """Build the plan. It uses the memory of `shared` if that is large enough; the two plans
        must then not run at the same time. May be called again."""

class Plan:
    """A recorded step. Concurrent runs wait for each other."""

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
        adapters: Sequence[Ints] = (),
    ) -> npt.NDArray[np.float32]:
        """Run the step and return its output, a view that the next run overwrites. Releases the
        GIL for the whole step."""
    def profile(self) -> dict[str, tuple[float, int]]:
        """Return (seconds, calls) per kernel, of all runs with `profiling` on."""
    @property
    def arena_bytes(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
