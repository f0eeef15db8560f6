"""The runtime of a GPU, on one: as the CPU's reference answers, and as itself without graphs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import torch
from scheduled_requests import Request, generate, requests_over

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import TokenRequest
from penstock.kernels.triton import TritonOps
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime import start_runtime
from penstock.runtime.gpu.cuda_graphs import SIZES
from penstock.runtime.gpu.load import place
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import FREE, GpuRuntime
from penstock.scheduler import Scheduler
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, BLOCK = 24, 16
SETTINGS = EngineSettings(
    max_model_len=CONTEXT,
    max_num_seqs=ROWS,
    max_num_batched_tokens=512,
    block_size=BLOCK,
    cache_mb=64,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("model") / "small-llama")


def start(folder: Path, settings: EngineSettings, *, graphs: bool = True) -> GpuRuntime:
    model = load_model(files_at(folder, "m"), settings.dtype)
    memory = plan_device_memory(model.spec, 1 << 20, settings, 8 << 30)
    dtype = torch.float32 if settings.dtype == "f32" else torch.bfloat16
    return place(model, memory, settings, TritonOps("cuda:0", dtype), graphs=graphs)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[GpuRuntime]:
    runtime = start(folder, SETTINGS)
    yield runtime
    runtime.close()


def scheduler(num_blocks: int, **options: int) -> Scheduler:
    sizes = {
        "num_blocks": num_blocks,
        "block_size": BLOCK,
        "max_model_len": CONTEXT,
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": 512,
    }
    return Scheduler(**(sizes | options))  # type: ignore[arg-type]


def test_in_float32_it_answers_as_the_reference(folder: Path) -> None:
    """Greedy: a tempered draw may fall on either side of a rounding error."""
    wide = msgspec.structs.replace(SETTINGS, dtype="f32")
    greedy = [r for r in requests_over(VOCAB, 100) if r.sampling.temperature == 0]
    runtime = start(folder, wide)
    ours = generate(runtime, scheduler(runtime.info.cache_blocks), greedy)
    runtime.close()
    settings = msgspec.structs.replace(wide, device="cpu", kernels="reference")
    reference = start_runtime(files_at(folder, "m"), settings)
    right = generate(reference, scheduler(reference.info.cache_blocks), greedy)  # type: ignore[arg-type]
    for answer, expected in zip(ours.answers, right.answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in expected]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 12, 13, 16, 20, 24])
def test_a_replay_gives_the_bits_of_launches(folder: Path, served: GpuRuntime, rows: int) -> None:
    """At every fill level: the same tokens and the same log-probabilities, to the last bit."""
    requests = (requests_over(VOCAB, 60) * 3)[:rows]
    plain = [r for r in requests if not r.sampling.logit_bias]
    launched = start(folder, SETTINGS, graphs=False)
    answers = [
        generate(runtime, scheduler(runtime.info.cache_blocks), plain).answers
        for runtime in (served, launched)
    ]
    launched.close()
    assert answers[0] == answers[1]


MANY = msgspec.structs.replace(SETTINGS, max_num_seqs=SIZES[-1], max_num_batched_tokens=2048)
# The fewest rows of each size, and the most.
FILLS = sorted({count for below, size in pairwise((0, *SIZES)) for count in (below + 1, size)})
DRAWS = (
    Sampling(temperature=0.0),
    Sampling(temperature=1.0),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
)


@pytest.fixture(scope="module")
def both_ways(folder: Path) -> Iterator[tuple[GpuRuntime, GpuRuntime]]:
    """Of any number of rows, with graphs and without."""
    runtimes = start(folder, MANY), start(folder, MANY, graphs=False)
    yield runtimes
    for runtime in runtimes:
        runtime.close()


@pytest.mark.parametrize("rows", FILLS)
def test_a_replay_that_draws_gives_the_bits_of_launches_at_every_size(
    both_ways: tuple[GpuRuntime, GpuRuntime], rows: int
) -> None:
    requests = [
        Request((row % VOCAB, row % 7, 5), 6, DRAWS[row % len(DRAWS)], seed=row)
        for row in range(rows)
    ]
    sizes = {
        "max_num_seqs": MANY.max_num_seqs,
        "max_num_batched_tokens": MANY.max_num_batched_tokens,
    }
    replayed, launched = (
        generate(runtime, scheduler(runtime.info.cache_blocks, **sizes), requests).answers
        for runtime in both_ways
    )
    assert replayed == launched
    size = next(size for size in SIZES if size >= rows)
    assert (size, FREE) in both_ways[0].captured


def test_computing_ahead_changes_no_answer(folder: Path) -> None:
    """In float32: steps of other sizes may round otherwise."""
    runtime = start(folder, msgspec.structs.replace(SETTINGS, dtype="f32"))
    overlapping = core_answers(runtime)
    runtime._info = msgspec.structs.replace(runtime.info, overlaps=False)
    assert core_answers(runtime) == overlapping
    runtime.close()


def core_answers(runtime: GpuRuntime) -> dict[str, list[int]]:
    core = EngineCore.for_runtime(runtime, SETTINGS)
    answers: dict[str, list[int]] = {}
    for index, request in enumerate(requests_over(VOCAB, 90) * 2):
        answers[str(index)] = []
        core.submit(
            TokenRequest(
                id=str(index),
                token_ids=request.prompt,
                sampling=request.sampling,
                seed=request.seed,
                max_tokens=request.max_tokens,
                stop_token_ids=frozenset({3, 17}),
            )
        )
    while core.has_work:
        for chunk in core.step():
            answers[chunk.id] += [token.token_id for token in chunk.tokens]
    return answers


def test_eight_bits_of_cache_change_little(folder: Path, served: GpuRuntime) -> None:
    narrow = start(folder, msgspec.structs.replace(SETTINGS, cache_dtype="f8e4m3"))
    prompt = requests_over(VOCAB, 100)[2]
    first = [
        generate(runtime, scheduler(runtime.info.cache_blocks), [prompt]).answers[0][0][1]
        for runtime in (served, narrow)
    ]
    narrow.close()
    assert first[0] == pytest.approx(first[1], abs=0.3)
