"""Architectures without a family run on transformers' modules with the paged KV cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models import expected_logits, random_model

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.step_inputs import StepInputs
from penstock.models.hub.model_files import ModelFiles
from penstock.runtime.load import start_runtime

MODELS: dict[str, dict[str, Any]] = {
    "GPTNeoX": {"num_key_value_heads": 4},
    "Olmo": {},
    "Nemotron": {"head_dim": 16},
}
BLOCK = 16


def start(folder: Path, **options: Any) -> Any:
    settings = EngineSettings(
        model=str(folder), block_size=BLOCK, threads=1, **({"dtype": "f32"} | options)
    )
    return start_runtime(ModelFiles("m", "folder", folder), settings)


def inputs(tokens: list[list[int]], starts: list[int]) -> StepInputs[Any]:
    """Return a step with one row per list of tokens, which begins at its start."""
    lengths = [len(row) for row in tokens]
    positions = np.concatenate(
        [np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
    )
    row_of = np.repeat(np.arange(len(tokens)), lengths)
    tables = np.array([[4 * row + 1, 4 * row] for row in range(len(tokens))], np.int32)
    slots = tables[row_of, positions // BLOCK] * BLOCK + positions % BLOCK
    return StepInputs(
        tokens=np.concatenate(tokens).astype(np.int32),
        positions=positions.astype(np.int32),
        slots=slots.astype(np.int32),
        query_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        context_lens=np.add(starts, lengths).astype(np.int32),
        block_tables=tables,
        sample_rows=np.arange(sum(lengths), dtype=np.int32),
    )


@pytest.mark.parametrize("name", MODELS)
def test_chunks_batches_and_decoding_give_the_logits_of_transformers(
    name: str, tmp_path: Path
) -> None:
    model = random_model(name, MODELS[name])
    model.save_pretrained(tmp_path)
    runtime = start(tmp_path)
    first, second = [3, 9, 4, 7, 5, 1, 8, 2, 6, 11, 12, 13, 14, 10, 3, 7, 9, 5], [5, 8, 1, 9, 2]
    backend = runtime._backend
    got = [backend.logits(inputs([first[:7], second[:3]], [0, 0]))]
    got.append(backend.logits(inputs([first[7:17], second[3:4]], [7, 3])))
    got.append(backend.logits(inputs([first[17:], second[4:]], [17, 4])))
    own = [expected_logits(model, row).numpy() for row in (first, second)]
    bounds = [((0, 7), (0, 3)), ((7, 17), (3, 4)), ((17, 18), (4, 5))]
    for step, ((a, b), (c, d)) in zip(got, bounds, strict=True):
        right = np.concatenate([own[0][a:b], own[1][c:d]])
        np.testing.assert_allclose(step, right, rtol=2e-3, atol=2e-3)
    runtime.close()


@pytest.mark.parametrize(
    ("keys", "cause"),
    [
        ({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}, "recurrent layers"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "T5"),
        ({"model_type": "new", "auto_map": {"AutoConfig": "code.C"}}, "auto_map names code"),
    ],
)
def test_what_cannot_run_is_refused_by_name(
    keys: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(ModelError, match=cause):
        start(tmp_path)


def test_settings_that_need_a_family_are_refused(tmp_path: Path) -> None:
    random_model("Olmo", {}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="quantization is not supported for OlmoForCausalLM"):
        start(tmp_path, quantization="int8", dtype="auto")


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    model = random_model("Olmo", {})
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors only"):
        start(tmp_path)
