"""An MTP head on a GPU: drafts change no answer, right ones are accepted, and a replayed pass gives
the bits of its launches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scheduled_requests import Request, generate, scheduler_of
from test_device_mtp import (
    FREE,
    GREEDY,
    NAMES,
    VOCAB,
    drafting,
    poison_all,
    settings,
    write_right,
)

from penstock.dialog import Sampling
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.triton import TritonOps
from penstock.models.decoder.mtp_weights import MtpWeights
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.drafts.mtp import OpenedMtp
from penstock.runtime.gpu.drafters import size_drafter
from penstock.runtime.gpu.load import build_runtime
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.memory_terms import HEAD_TOKENS
from penstock.runtime.gpu.runtime import GpuRuntime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def start(folder: Path, *, graphs: bool = True) -> GpuRuntime:
    asked = settings()
    model = load_model(files_at(folder, "m"), "f32", mtp="required")
    ops = TritonOps("cuda:0", torch.float32)
    assert isinstance(model.mtp, MtpWeights)
    drafts = OpenedMtp(model.spec, model.mtp)
    sized = size_drafter(drafts, asked, ops)
    memory = plan_device_memory(model.spec, 1 << 20, asked, 8 << 30, sized)
    return build_runtime(model, memory, asked, ops, graphs=graphs, drafts=drafts)


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_right(request.param, tmp_path_factory.mktemp("right"))


@pytest.fixture(scope="module")
def replayed(folder: Path) -> Iterator[GpuRuntime]:
    runtime = start(folder)
    yield runtime
    runtime.close()


@pytest.mark.parametrize("sampling", [GREEDY, FREE], ids=["greedy", "free"])
def test_right_drafts_are_accepted_and_change_no_answer(
    replayed: GpuRuntime, sampling: Sampling
) -> None:
    requests = [Request((*range(40), token), 40, sampling, seed=token) for token in (3, 11, 90)]
    poison_all(replayed)
    plain = scheduler_of(replayed, drafter=None)
    expected = generate(replayed, plain, requests).answers  # type: ignore[arg-type]
    poison_all(replayed)
    scheduler = drafting(replayed, max_num_batched_tokens=50)
    for _ in range(2):  # the second time with a cached prefix
        answers = generate(replayed, scheduler, requests).answers  # type: ignore[arg-type]
        assert [[token for token, *_ in one] for one in answers] == [
            [token for token, *_ in one] for one in expected
        ]
    gauges = scheduler.gauges()
    assert gauges.mtp_accepted_tokens > 0.9 * gauges.mtp_draft_tokens > 50


@pytest.mark.parametrize("count", [1, 3, HEAD_TOKENS])
def test_a_replayed_pass_equals_launches_bit_for_bit(
    folder: Path, replayed: GpuRuntime, count: int
) -> None:
    launched = start(folder, graphs=False)
    random = np.random.default_rng(0)
    positions = np.arange(20, 20 + count, dtype=np.int32)
    table = np.array([[2, 5, 1]], np.int32)
    inputs = StepInputs(
        tokens=random.integers(0, VOCAB, count).astype(np.int32),
        positions=positions,
        slots=table[0, positions // 16] * 16 + positions % 16,
        query_starts=np.array([0, count], np.int32),
        context_lens=np.array([20 + count], np.int32),
        block_tables=table,
        sample_rows=np.array([count - 1], np.int32),
    )
    states = torch.randn(count, 64, device="cuda:0", generator=torch.Generator("cuda:0"))
    found = []
    for runtime in (replayed, launched):
        head = runtime.placed_drafter
        assert head is not None
        head.pools.fill(0.0)
        with runtime.launching():
            results = head.steps.run(inputs, states, np.arange(count, dtype=np.int32))
            found.append([part.clone().cpu() for part in results if part is not None])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    launched.close()
