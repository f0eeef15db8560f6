"""What a mixture of experts launches on a GPU is among the kernels that are packaged for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.gpu.load import place
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from penstock.scheduler import NewSequence, Scheduler
from tests.support.checkpoints.float8_checkpoints import write_float8
from tests.support.checkpoints.small_moe import (
    CONFIG,
    CONTEXT,
    DENSE_LAYER,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PER_TOKEN,
    VOCAB,
    expert_tensors,
    write_small_experts,
    write_small_experts_gguf,
)

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.ops import all_ops
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton import TritonOps
from penstock.kernels.triton.compile.launch import record_launches
from penstock.kernels.triton.compile.packaged_signatures import Sizes, shipped
from penstock.kernels.triton.compile.signature import Signature

ROWS = 4
# Wide enough for the groups of 128 columns that 8-bit floats have.
WIDE, WIDE_FF = 128, 256
SIZES = Sizes(
    WIDE, (HEADS, KV_HEADS, HEAD_DIM), WIDE_FF, VOCAB, True, EXPERTS, PER_TOKEN, blocks=True
)
EVERY = {"combine_kernel", "route_kernel", "order_choices_kernel"}
CHANGED: dict[str, Any] = {
    "num_hidden_layers": 2,
    "mlp_only_layers": [],
    "hidden_size": WIDE,
    "moe_intermediate_size": WIDE_FF,
}
FLOAT8 = {"widen_experts_kernel", "experts_float8_kernel", "quantize_float8_kernel"}


class PretendedOps(TritonOps):
    """On CPU tensors, the kernels of a GPU: they are noted, and do nothing."""

    def __init__(
        self,
        products: Literal["measured", "invariant"],
        dense: Literal["stored", "float8"] = "stored",
    ) -> None:
        self._products = products
        self._dense = dense
        table = KernelRegistry(all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"}))
        TorchOps.__init__(self, table, "cpu", torch.bfloat16)


@pytest.fixture(scope="module")
def packaged() -> set[Signature]:
    return set(shipped([SIZES]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_experts(tmp_path_factory.mktemp("models") / "plain", drawn(), **CHANGED)


def drawn() -> dict[str, np.ndarray]:
    """Two layers, both mixtures: the last sees only the tokens whose logits are wanted."""
    return {
        name.replace("layers.2.", "layers.1."): values
        for name, values in expert_tensors(width=WIDE, expert_ff=WIDE_FF).items()
        if f"layers.{DENSE_LAYER}." not in name
    }


def launched(path: Path, ops: PretendedOps) -> set[Signature]:
    """By a step of many tokens, and by one of a single token."""
    settings = EngineSettings(
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
        block_size=16,
        cache_mb=1,
    )
    with record_launches() as launches:
        files = files_at(path, "m") if path.is_dir() else ModelFiles("m", "gguf", path)
        model = load_model(files, settings.dtype, float8="float8")
        memory = plan_device_memory(model.spec, 1 << 20, settings, 1 << 30)
        runtime = place(model, memory, settings, ops)
        for lengths in ((1, 100), (1,)):
            execute(runtime, lengths)
    return {launch.signature() for launch in launches}


def execute(runtime: GpuRuntime, lengths: tuple[int, ...]) -> None:
    """The first step of prompts of so many tokens."""
    scheduler = Scheduler(
        num_blocks=runtime.info.cache_blocks,
        block_size=16,
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=64,
    )
    for length in lengths:
        tokens = tuple(index % VOCAB for index in range(length))
        greedy = Sampling(temperature=0.0)
        scheduler.submit(NewSequence(str(length), tokens, greedy, seed=1, max_tokens=3))
    plan = scheduler.plan()
    assert plan is not None
    runtime.execute(plan)


def names(signatures: set[Signature]) -> set[str]:
    return {signature.kernel for signature in signatures}


def test_every_launch_of_a_mixture_is_packaged(folder: Path, packaged: set[Signature]) -> None:
    signatures = launched(folder, PretendedOps("invariant"))
    assert EVERY | {"experts_kernel"} <= names(signatures)
    assert signatures - packaged == set()


@pytest.mark.parametrize("products", ["measured", "invariant"])
@pytest.mark.parametrize("form", ["fp8-block", "channel", "rounded"])
def test_so_is_every_launch_of_experts_in_8_bit_floats(
    folder: Path, packaged: set[Signature], tmp_path: Path, form: Any, products: Any
) -> None:
    if form == "rounded":
        signatures = launched(folder, PretendedOps(products, "float8"))
    else:
        write_float8(folder, tmp_path / "m", form, torch.bfloat16)
        signatures = launched(tmp_path / "m", PretendedOps(products))
    float8 = FLOAT8 - ({"widen_experts_kernel"} if products == "invariant" else set())
    assert EVERY | float8 <= names(signatures)
    # Products of measured floats (the router, the head) are the library's beyond a few rows.
    left = {one for one in signatures - packaged if one.kernel != "linear_kernel"}
    assert left == set()


@pytest.mark.parametrize("products", ["measured", "invariant"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_so_is_every_launch_of_experts_in_integers(
    packaged: set[Signature], tmp_path: Path, kind: str, products: Any
) -> None:
    path = write_small_experts_gguf(tmp_path / "m.gguf", drawn(), kind, CONFIG | CHANGED)
    signatures = launched(path, PretendedOps(products))
    assert EVERY | {"experts_affine_kernel", "quantize_kernel"} <= names(signatures)
    # The router is of floats.
    assert {one for one in signatures - packaged if one.kernel != "linear_kernel"} == set()
