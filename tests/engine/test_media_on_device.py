"""The GPU runtime, over reference ops on the CPU, answers prompts with media like the CPU runtime:
prefills with media, decode steps whose positions continue after them, several rows in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_runtime_on_cpu import FREE_BYTES, gpu_ops_on_cpu
from media_engine import (
    CONTEXT,
    Answer,
    core_over,
    image,
    media_request,
    run,
    start_with_tower,
    words,
)

from penstock.config import EngineSettings
from penstock.dialog import Sampling
from penstock.models.families import registry
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.runtime.gpu.load import build_runtime
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.runtime import GpuRuntime
from tests.support.checkpoints.small_llama import WIDTH
from tests.support.noise_towers import NoiseTower
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

BLOCK, ROWS = 16, 6


def loaded_with(
    folder: Path, tower: NoiseTower, **options: Any
) -> tuple[LoadedModel, EngineSettings]:
    """Return the model in `folder` with `tower`, and its settings."""
    sizes = {
        "max_model_len": CONTEXT,
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": CONTEXT,
        "block_size": BLOCK,
        "dtype": "f32",
        "kv_cache_dtype": "f32",
    }
    settings = EngineSettings(model=str(folder), **(sizes | options))
    with pytest.MonkeyPatch.context() as patch:
        family = tower.family("LlamaForCausalLM")
        patch.setitem(registry.MEDIA_FAMILIES, "LlamaForCausalLM", family)
        return load_model(files_at(folder, "small-llama"), settings.dtype), settings


def device_runtime(folder: Path, tower: NoiseTower, **options: Any) -> GpuRuntime:
    """Return the runtime that a GPU would have for the files in `folder`."""
    model, settings = loaded_with(folder, tower, **options)
    memory = plan_device_memory(model.spec, 1 << 20, settings, FREE_BYTES)
    return build_runtime(model, memory, settings, gpu_ops_on_cpu(settings))


def requests_of(axes: int, *, whole: bool = False) -> list[Any]:
    return [
        media_request("text", words(20, 1), axes=axes),
        media_request("one", words(9, 2), image("a", whole=whole), words(6, 3), axes=axes),
        media_request("ends", words(30, 4), image("b", 8, 0), axes=axes),
        media_request(
            "two",
            image("a", whole=whole),
            words(3, 5),
            image("c", 16, whole=whole),
            words(2, 6),
            axes=axes,
            sampling=Sampling(temperature=0.8, frequency_penalty=0.3),
        ),
    ]


def assert_close(got: Answer, expected: Answer) -> None:
    assert got.error is None and expected.error is None
    assert [token.token_id for token in got.tokens] == [token.token_id for token in expected.tokens]
    assert [token.logprob for token in got.tokens] == pytest.approx(
        [token.logprob for token in expected.tokens], abs=2e-3
    )


@pytest.mark.parametrize(
    ("axes", "whole", "deep", "options"),
    [
        (1, False, 0, {}),
        (3, False, 2, {}),
        (1, True, 0, {}),
        (3, False, 1, {"max_num_batched_tokens": 24}),
    ],
    ids=["plain", "three-positions-and-deep", "whole", "chunked"],
)
def test_answers_are_those_of_the_cpu_runtime(
    axes: int, whole: bool, deep: int, options: dict[str, Any], tmp_path: Path
) -> None:
    tower = NoiseTower(WIDTH, deep)
    cpu = start_with_tower(tmp_path, tower, axes=axes, dtype="f32", kv_cache_dtype="f32")
    device = device_runtime(tmp_path, tower)
    requests = requests_of(axes, whole=whole)
    expected = run(core_over(cpu), requests)
    got = run(core_over(device, **options), requests)
    for request in requests:
        assert_close(got[request.id], expected[request.id])
    assert got["one"].tokens != got["text"].tokens


def test_decode_steps_after_media_are_captured_steps(tmp_path: Path) -> None:
    """A row without media may share them, and a row's shift ends with the row."""
    tower = NoiseTower(WIDTH)
    start_with_tower(tmp_path, tower, axes=3, dtype="f32", kv_cache_dtype="f32").close()
    device = device_runtime(tmp_path, tower)
    replayed: list[int] = []
    replay = device._graphs.replay
    device._graphs.replay = lambda size, form: (  # type: ignore[method-assign]
        replayed.append(size),
        replay(size, form),
    )[1]
    run(core_over(device), requests_of(3))
    assert len(replayed) >= 10
    alone = run(core_over(device), requests_of(3)[:1])
    fresh = run(core_over(device_runtime(tmp_path, tower)), requests_of(3)[:1])
    assert_close(alone["text"], fresh["text"])


@pytest.mark.slow
@pytest.mark.timeout(900)  # 100 s of CPU time
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_triton_kernels_answer_alike_in_the_interpreter() -> None:
    passes_interpreted(__file__)
