"""What a mixture of experts launches on a GPU is among the kernels that are packaged for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_experts import (
    CONTEXT,
    EXPERT_FF,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PER_TOKEN,
    VOCAB,
    WIDTH,
    expert_tensors,
    write_small_experts,
)

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.models.loading import load_model
from penstock.models.sources import files_at
from penstock.runtime.gpu_graphs import sizes_up_to
from penstock.runtime.gpu_load import place
from penstock.runtime.gpu_memory import plan_device_memory
from penstock.scheduler import Scheduler

pytest.importorskip("triton", reason="Triton has no build for this platform")

from penstock.kernels.op import KernelTable, Machine
from penstock.kernels.ops import all_ops
from penstock.kernels.torch_ops import TorchOps
from penstock.kernels.triton import TritonOps
from penstock.kernels.triton.launch import noting
from penstock.kernels.triton.shipped import Sizes, shipped

ROWS = 4


class PretendedOps(TritonOps):
    """On CPU tensors, the kernels of a GPU: they are noted, and do nothing."""

    def __init__(self) -> None:
        self._products = "invariant"  # the others are the library's beyond a few tokens
        self._dense = "stored"
        table = KernelTable(all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"}))
        TorchOps.__init__(self, table, "cpu", torch.bfloat16)


def test_every_launch_of_a_mixture_is_packaged(tmp_path: Path) -> None:
    kept = {
        name: values
        for name, values in expert_tensors().items()
        if "layers." not in name or "layers.0." in name
    }
    folder = write_small_experts(tmp_path / "small-experts", kept, num_hidden_layers=1)
    settings = EngineSettings(
        context_tokens=CONTEXT, max_seqs=ROWS, token_budget=64, block_tokens=16, cache_mb=1
    )
    with noting() as launches:
        model = load_model(files_at(folder, "small-experts"), settings.dtype)
        memory = plan_device_memory(model.spec, 1 << 20, settings, 1 << 30, sizes_up_to(ROWS))
        runtime = place(model, memory, settings, PretendedOps())
        scheduler = Scheduler(
            num_blocks=runtime.info.cache_blocks,
            block_tokens=16,
            context_tokens=CONTEXT,
            max_seqs=ROWS,
            token_budget=64,
        )
        for name, length in (("short", 1), ("long", 100)):
            tokens = tuple(index % VOCAB for index in range(length))
            greedy = Sampling(temperature=0.0)
            scheduler.submit(name, token_ids=tokens, sampling=greedy, seed=1, max_tokens=3)
        plan = scheduler.plan()
        assert plan is not None
        runtime.execute(plan)
    sizes = Sizes(WIDTH, (HEADS, KV_HEADS, HEAD_DIM), EXPERT_FF, VOCAB, True, EXPERTS, PER_TOKEN)
    launched = {launch.signature() for launch in launches}
    assert {"experts_kernel", "combine_kernel", "route_kernel", "order_choices_kernel"} <= {
        signature.kernel for signature in launched
    }
    assert launched - set(shipped([sizes])) == set()
