"""Gemma 2, Gemma 3n, Gemma 4 and Llama 4, with small random weights, give the logits of
`transformers`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_stepper import BLOCK_TOKENS, Stepper, load_decoder
from gemma_export import export
from gemma_models import CASES, build
from safetensors.torch import load_file, save_file

from penstock import _native
from penstock.kernels.native import NativeOps, plan_arguments
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model

PROMPT = [3, 17, 5, 60, 2, 9, 44, 31, 8, 8, 12, 50, 7, 23, 1, 40, 33, 6, 19, 28, 61, 4, 10]
TOLERANCE = {"atol": 2e-4, "rtol": 2e-4}
BLOCKS = 4


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model) of one case."""
    model = build(request.param)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder, model


@torch.no_grad()
def expected_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


def test_prefill_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    logits = Stepper(*load_decoder(folder)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


def test_decode_after_a_chunked_prompt_gives_the_logits_of_transformers(saved: Any) -> None:
    folder, model = saved
    expected = expected_logits(model, PROMPT)
    stepper = Stepper(*load_decoder(folder), sequences=2)
    stepper.step({0: PROMPT[:6], 1: PROMPT[:3]})
    stepper.step({0: PROMPT[6:18]})
    for position in range(18, len(PROMPT)):
        logits = stepper.step({0: PROMPT[position : position + 1]})
        torch.testing.assert_close(logits, expected[position : position + 1], **TOLERANCE)
    logits = stepper.step({1: PROMPT[3:9]})
    torch.testing.assert_close(logits, expected[8:9], **TOLERANCE)


def step_inputs(first: int, last: int) -> StepInputs[Any]:
    """Return the step of the prompt's tokens `first` to `last`; all are sampled."""
    place = np.arange(first, last, dtype=np.int32)
    return StepInputs(
        tokens=np.array(PROMPT[first:last], np.int32),
        positions=place,
        slots=place + BLOCK_TOKENS,
        query_starts=np.array([0, last - first], np.int32),
        context_lens=np.array([last], np.int32),
        block_tables=np.arange(1, BLOCKS, dtype=np.int32)[None],
        sample_rows=np.arange(last - first, dtype=np.int32),
    )


def caches_of(spec: DecoderSpec) -> list[LayerCache[Any] | None]:
    return [
        None
        if size is None
        else LayerCache(
            np.zeros((BLOCKS, size.kv_heads, size.key_dim, BLOCK_TOKENS), np.float32),
            np.zeros((BLOCKS, size.kv_heads, BLOCK_TOKENS, size.value_dim), np.float32),
        )
        for size in spec.caches
    ]


def test_a_native_plan_gives_the_logits_of_transformers_in_any_chunks(saved: Any) -> None:
    folder, model = saved
    loaded = load_model(ModelFiles("test", "folder", folder), "auto")
    ops = NativeOps.eager(_native.ThreadPool(2))
    decoder: Decoder[Any] = Decoder(loaded.spec, loaded.weights, ops, max_model_len=64)
    results = []
    for cuts in ((0, len(PROMPT)), (0, 9, 16, 17, len(PROMPT))):
        recorder = ops.recorder(len(PROMPT), 2, len(PROMPT), BLOCKS - 1)
        logits = decoder.forward(recorder, recorder.inputs, caches_of(loaded.spec))
        plan = recorder.finish(logits)
        steps = (plan_arguments(step_inputs(*cut)) for cut in itertools.pairwise(cuts))
        results.append(np.concatenate([np.array(plan.run(*step)) for step in steps]))
    np.testing.assert_array_equal(results[0], results[1])
    expected = expected_logits(model, PROMPT)
    torch.testing.assert_close(torch.from_numpy(results[0]), expected, atol=1e-3, rtol=1e-3)


LLAMA4_KEYS = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
# The file has no attention scale, which follows from the head dimension, and as many rows of
# per-layer inputs as tokens.
GGUF_KEYS: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3n": {"vocab_size_per_layer_input": 64},
    "llama4": LLAMA4_KEYS,
    "llama4 with dense layers": LLAMA4_KEYS | {"use_qk_norm": True, "attention_bias": False},
}
GGUF_CASES = [case for case in CASES if case != "gemma2 without caps"]


@pytest.mark.parametrize("case", GGUF_CASES)
def test_a_float_gguf_file_gives_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    model = build(case, **GGUF_KEYS.get(case, {}))
    export(model, tmp_path / "m.gguf")
    logits = Stepper(*load_decoder(tmp_path / "m.gguf")).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)


@pytest.mark.parametrize(
    ("case", "architecture", "old", "new"),
    [
        ("gemma3n", "Gemma3nForConditionalGeneration", "model.", "model.language_model."),
        ("llama4", "Llama4ForConditionalGeneration", "", "language_model."),
    ],
)
def test_the_text_model_of_a_multimodal_folder_gives_the_logits_of_transformers(
    case: str, architecture: str, old: str, new: str, tmp_path: Path
) -> None:
    model = build(case)
    model.save_pretrained(tmp_path)
    path, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    text = json.loads(path.read_text())
    kind = text["model_type"].removesuffix("_text")
    config = {"architectures": [architecture], "model_type": kind, "text_config": text}
    path.write_text(json.dumps(config))
    tensors = {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, {"format": "pt"})
    logits = Stepper(*load_decoder(tmp_path)).step({0: PROMPT}, all_rows=True)
    torch.testing.assert_close(logits, expected_logits(model, PROMPT), **TOLERANCE)
