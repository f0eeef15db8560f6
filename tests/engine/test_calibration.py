"""Importance matrices that a model collects: the sums of transformers, the same answers, and
nothing between the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from lora_base_models import settings
from scheduled_requests import generate, requests_over, scheduler_of

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.engine.calibration import chunks_of, importance_of_text
from penstock.kernels.column_squares import Squares
from penstock.models.hub.sources import files_at
from penstock.quant.importance import ImportanceMatrix
from penstock.runtime import start_runtime
from tests.support.checkpoints.embedding_checkpoints import save_sentence_folder, small_body
from tests.support.checkpoints.small_llama import VOCAB, write_small_llama
from tests.support.checkpoints.small_moe import write_small_experts

TEXT = np.random.default_rng(3).integers(0, VOCAB, 100).tolist()
LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def collected(folder: Path, **options: Any) -> ImportanceMatrix:
    chosen = EngineSettings(model=str(folder), dtype="f32", kv_cache_dtype="f32", **options)
    return importance_of_text(chosen, chunks_of(TEXT, 32), "text")


def inputs_of(model: Any, modules: dict[str, Any], chunks: list[list[int]]) -> dict[str, Any]:
    """Return the inputs [T, C] of modules while the model computes the chunks."""
    seen: dict[str, list[Any]] = {name: [] for name in modules}
    for name, module in modules.items():
        module.register_forward_pre_hook(
            lambda _, given, name=name: seen[name].append(given[0].reshape(-1, given[0].shape[-1]))
        )
    with torch.no_grad():
        for chunk in chunks:
            model(torch.tensor([chunk]))
    return {name: torch.cat(parts).numpy() for name, parts in seen.items()}


def test_sums_are_those_of_transformers(tmp_path: Path) -> None:
    folder = write_small_llama(tmp_path / "m")
    matrix = collected(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    layers = model.model.layers
    modules = {
        f"blk.{index}.{short}.weight": layer.get_submodule(module)
        for index, layer in enumerate(layers)
        for short, module in LINEARS.items()
    }
    inputs = inputs_of(model, modules, chunks_of(TEXT, 32))
    assert set(matrix.squares) == set(modules)
    assert (matrix.datasets, matrix.chunk_count, matrix.chunk_size) == (("text",), 3, 32)
    for name, rows in inputs.items():
        assert matrix.squares[name].counts.tolist() == [96] == [len(rows)]
        np.testing.assert_allclose(matrix.squares[name].sums[0], (rows**2).sum(0), rtol=2e-3)


def test_sums_of_experts_are_those_of_the_tokens_that_chose_them(tmp_path: Path) -> None:
    folder = write_small_experts(tmp_path / "m")
    matrix = collected(folder)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    mixtures = {
        index: layer.mlp
        for index, layer in enumerate(model.model.layers)
        if hasattr(layer.mlp, "experts")
    }
    assert mixtures
    inputs = inputs_of(model, {str(i): one for i, one in mixtures.items()}, chunks_of(TEXT, 32))
    for index, mixture in mixtures.items():
        rows = torch.tensor(inputs[str(index)])
        weight = next(v for k, v in mixture.named_parameters() if k == "gate.weight")
        chosen = (rows @ weight.T).topk(model.config.num_experts_per_tok, dim=-1).indices.numpy()
        names = [f"blk.{index}.ffn_{part}_exps.weight" for part in ("gate", "up", "down")]
        gate, up, down = (matrix.squares[name] for name in names)
        fused = mixture.experts.gate_up_proj
        for expert in range(len(fused)):
            own = rows[(chosen == expert).any(1)]
            opened = own @ fused[expert].T
            inner = torch.nn.functional.silu(opened[:, : opened.shape[1] // 2])
            inner = (inner * opened[:, opened.shape[1] // 2 :]).detach().numpy()
            assert gate.counts[expert] == up.counts[expert] == down.counts[expert] == len(own)
            expected = (own.numpy() ** 2).sum(0)
            np.testing.assert_allclose(gate.sums[expert], expected, rtol=2e-3, atol=1e-5)
            np.testing.assert_allclose(up.sums[expert], expected, rtol=2e-3, atol=1e-5)
            np.testing.assert_allclose(down.sums[expert], (inner**2).sum(0), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("write", [write_small_llama, write_small_experts])
@pytest.mark.parametrize("quantization", [None, "int4"])
def test_answers_are_the_same_while_inputs_are_collected(
    write: Any, quantization: Any, tmp_path: Path
) -> None:
    chosen = settings("m", lora=None, quantization=quantization)
    runtime = start_runtime(files_at(write(tmp_path / "m"), "m"), chosen)
    live, requests = runtime.live_weights, requests_over(VOCAB, 40)
    assert live is not None
    squares: Squares = {}
    answers = []
    for given in (None, squares, None):
        before = {name: one.counts.copy() for name, one in squares.items()}
        live.collect(given)
        scheduler = scheduler_of(runtime, prefix_caching=False)
        answers.append(generate(runtime, scheduler, requests).answers)
        if given is None:
            assert all((squares[name].counts == counts).all() for name, counts in before.items())
    assert answers[0] == answers[1] == answers[2]
    assert len(squares) == live.num_linears
    runtime.close()


def test_a_model_that_makes_no_text_is_refused(tmp_path: Path) -> None:
    folder = save_sentence_folder(tmp_path, small_body("Bert"))
    with pytest.raises(ModelError, match="generates text on the CPU"):
        collected(folder)
