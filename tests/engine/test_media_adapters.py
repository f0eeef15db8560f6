"""Prompts with media and adapters together, and over the reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from media_engine import Answer, bits, core_over, image, media_request, run, start_with_tower, words

from penstock.config import LoraSettings
from penstock.engine.types import AdapterSource, TokenRequest
from tests.support.checkpoints.lora_adapters import load, write_adapter
from tests.support.checkpoints.small_llama import WIDTH
from tests.support.noise_towers import NoiseTower

LORA = LoraSettings(max_adapters=4, max_rank=16)


def requests(axes: int) -> list[TokenRequest]:
    a, b = image("a"), image("b", rows=20)
    return [
        media_request("a", words(9, 1), a, words(4, 2), axes=axes),
        media_request("b", words(9, 1), b, words(4, 2), a, axes=axes),
        media_request("text", words(30, 3), axes=axes),
    ]


def test_adapters_and_media_of_one_step_do_not_depend_on_each_other(tmp_path: Path) -> None:
    tower = NoiseTower(WIDTH, deep=1)
    runtime = start_with_tower(tmp_path / "small-llama", tower, axes=3, lora=LORA)
    core = core_over(runtime, lora=LORA)
    for seed, name in enumerate("xy"):
        write_adapter(tmp_path / name, seed=seed)
        load(core, AdapterSource(name, str(tmp_path / name)))
    asked = [
        msgspec.structs.replace(one, id=f"{one.id} {name}", adapter=name)
        for one in requests(axes=3)
        for name in ("", "x", "y")
    ]
    together = run(core, asked)
    alone: dict[str, Answer] = {}
    for one in asked:
        alone |= run(core, [one])
    assert bits(together) == bits(alone)
    assert len({str(answer.tokens) for answer in together.values()}) == len(asked)
    core.close()


def _answers(folder: Path, axes: int, deep: int, **options: Any) -> dict[str, Answer]:
    runtime = start_with_tower(folder, NoiseTower(WIDTH, deep), axes=axes, dtype="f32", **options)
    core = core_over(runtime, max_num_batched_tokens=30)
    answers = run(core, requests(axes))
    core.close()
    return answers


@pytest.mark.parametrize(("axes", "deep"), [(1, 0), (3, 2)])
def test_the_reference_answers_the_same_up_to_rounding(
    tmp_path: Path, axes: int, deep: int
) -> None:
    native = _answers(tmp_path / "native", axes, deep)
    reference = _answers(tmp_path / "reference", axes, deep, kernel_backend="reference")
    for id, answer in native.items():
        right = reference[id].tokens
        assert [one.token_id for one in answer.tokens] == [one.token_id for one in right]
        assert [one.logprob for one in answer.tokens] == pytest.approx(
            [one.logprob for one in right], abs=1e-3
        )
