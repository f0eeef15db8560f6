"""The extension module: kernels, plans and the thread pool of the CPU. See csrc/bind.

Arrays are numpy arrays; every argument is checked, and errors name it: TypeError for a wrong
element type, ValueError for a wrong shape, layout or index value, KeyError for an unknown kernel.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]

def supported_isas() -> list[str]:
    """The instruction sets that this build has and this machine can run, emulated ones included."""

def attention_partial_floats(heads: int, kv_heads: int, dim: int, max_context: int) -> int:
    """The extent of the `partials` tensor of `paged_attention`."""

def phase_overhead_s(pool: ThreadPool, tasks: int, rounds: int) -> float:
    """Mean seconds of a phase of empty tasks: for the benchmark of the pool."""

class ThreadPool:
    """Persistent threads; the caller is one of `threads`. They sleep while nothing runs."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def stalls(self) -> int:
        """How often a barrier waited for a thread that the system had put aside."""

class KernelSet:
    """The kernels of one ISA, or of several that agree. "auto": the widest that the machine can
    run.

    `isa`: whose arithmetic products have, and that weights are packed for; `attention` and
    `other`: likewise of attention, and of all that is neither; "": as `isa`. `by_rows`: for a
    family ("affine", "dense", "experts", "attention", "other") pairs of the most rows of a call
    (None: any number), ascending, and the level that serves it where that gives the same bits;
    elsewhere the family's own level serves. Raises ValueError for levels that the machine lacks.
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
        """Whether `isa` gives the bits of the family's own level: products: with `object`;
        attention: `shared_halves`, over a float16 cache whose heads are shared."""
    def call(
        self,
        pool: ThreadPool,
        kernel: str,
        tensors: Sequence[Array],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        object: PackedLinear | PackedExperts | None = None,
    ) -> None:
        """Run one kernel now, with the GIL released. csrc/bind/call/signature.cc lists
        arguments."""

class DryRepetitions:
    """What DRY must know of a sequence; see csrc/cpu/sampling/dry_repetitions.h.

    A match ends at the end of the sequence and begins after the last of the `breakers` in it:
    pairs of heads, [n] int32, and a tail, [n] int32, of which each head with the tail behind it is
    one. Lengths above `longest` count as `longest`. Raises ValueError for heads that do not ascend.
    Its `size_bytes` are at most `bytes_per_token` for each token of a long sequence.
    """

    bytes_per_token: int
    size_bytes: int
    def __init__(self, breakers: Sequence[tuple[Ints, Ints]], longest: int) -> None: ...
    def extend(self, tokens: Ints) -> None:
        """The next tokens of the sequence, [n] int32."""
    @staticmethod
    def append_each(states: list[DryRepetitions | None], tokens: Ints) -> None:
        """tokens[i] follows in states[i]; a negative one is none."""
    @staticmethod
    def lists(states: list[DryRepetitions | None], least: Ints) -> tuple[Ints, Ints, Ints]:
        """Starts [S + 1], tokens [N] and lengths [N]: for each state the tokens, ascending, that
        would prolong a repetition of at least least[i] >= 1 tokens, and the length of the longest
        that each would. Single-token breakers are left out."""

class TokenCounts:
    """The distinct tokens of one sequence, and how often its answer has each. Those of `prompt`
    are seen before the answer has any."""

    def __init__(self, prompt: Ints) -> None: ...
    def extend(self, tokens: Ints) -> None:
        """The next tokens of the answer, [n] int32."""
    @staticmethod
    def append_each(states: list[TokenCounts | None], tokens: Ints) -> None:
        """tokens[i] follows in states[i]; a negative one is none."""
    @staticmethod
    def lists(states: list[TokenCounts | None]) -> tuple[Ints, Ints, Ints]:
        """Starts [S + 1], tokens [N] and counts [N] of each state, in order of appearance."""

class MatrixSource:
    """One matrix to pack; borrows its C-contiguous arrays. See `kernels.weights`."""

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
    """The packed experts of a layer. `gate_up`: gate and up of each in turn; `down`: one part for
    each; either with the biases of all. `activation`: "silu" or "swiglu_oai". ValueError where
    parts are not alike. `row_bytes`, `inner_bytes`: of a row that goes into the one and into the
    other."""

    row_bytes: int
    inner_bytes: int
    size_bytes: int
    def __init__(
        self, gate_up: PackedLinear, down: PackedLinear, activation: str = "silu"
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int, int]:
        """(E, F, W)."""

class PackedLinear:
    """Weights packed for an ISA, in parallel and with the GIL released. With `rows` so that the
    kernel `embedding` may gather from them."""

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
    """A tensor of a plan. Its memory is assigned when the recorder finishes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """At the largest step."""
    @property
    def dtype(self) -> str: ...

class Recorder:
    """Records calls of kernels into a plan for steps of at most these sizes."""

    def __init__(
        self, kernels: KernelSet, max_tokens: int, max_rows: int, max_samples: int
    ) -> None: ...
    def inputs(self, max_blocks: int, adapters: bool = False) -> list[PlanTensor]:
        """The seven inputs of a step, in the order of `kernels.ops_interface.StepInputs`, and with
        `adapters` the five of its groups of rows. Once."""
    def empty(self, like: PlanTensor, columns: int, dtype: str = "float32") -> PlanTensor:
        """A [rows of `like`, columns] tensor, undefined until a call writes it."""
    def between(self, starts: PlanTensor, columns: int) -> PlanTensor:
        """A float32 tensor with a row for each span between two neighbours of `starts`."""
    def scratch(self, extent: int, dtype: str = "float32") -> PlanTensor:
        """A vector whose extent is the same in every step."""
    def call(
        self,
        kernel: str,
        tensors: Sequence[PlanTensor | Array],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        object: PackedLinear | PackedExperts | None = None,
    ) -> None:
        """Record one call. Arrays are constants, or caches that the kernel updates; kept alive.

        RuntimeError where the call reads a tensor that no recorded call wrote."""
    def finish(self, pool: ThreadPool, output: PlanTensor, shared: Plan | None = None) -> Plan:
        """The memory of `shared` is used where it is large enough: then the two must not run at
        the same time. May be called again."""

class Plan:
    """A recorded step. One run at a time; others wait."""

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
        """The output, a view that the next run overwrites. Releases the GIL once for the step."""
    def profile(self) -> dict[str, tuple[float, int]]:
        """Seconds and calls by kernel, of the runs while `profiling` was on."""
    @property
    def arena_bytes(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
