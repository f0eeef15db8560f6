"""A GPU step allocates no more than the memory formula allows, at the sizes of real models: the
kernel wrappers run over meta tensors and compute nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import torch

from bench.device.layered_models import LAYERED
from bench.device.memory import LiveBytes
from bench.device.model_shapes import SHAPES, write_checkpoint
from penstock.config import EngineSettings
from penstock.kernels.kv_splits import FEW_ROWS, FEW_ROWS_SPLIT, smallest_split
from penstock.kernels.ops import all_ops
from penstock.kernels.recurrent_state import StateRows
from penstock.kernels.registry import KernelRegistry, Machine
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.triton import TritonOps
from penstock.kernels.triton.compile import launch as launching
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.runtime.gpu.attention_plans import AttentionPlans
from penstock.runtime.gpu.memory import plan_device_memory
from penstock.runtime.gpu.model import DeviceModel
from tests.support.checkpoints.layered_models import MODELS, write_layered_model
from tests.support.checkpoints.sparse_checkpoints import write_sparse_checkpoint

ROWS, CONTEXT, BUDGET, BLOCK = 256, 4096, 8192, 16
SETTINGS = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, max_model_len=CONTEXT)


class Nothing:
    """Replaces packaged kernels: every launch succeeds without effect."""

    def start(self, *call: Any) -> None: ...


@pytest.fixture(autouse=True)
def launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching._Serving, "packaged", Nothing())


class MetaOps(TritonOps):
    """The ops of an H200 without the CUDA library, over tensors without memory."""

    def __init__(self, dense: Literal["stored", "float8"]) -> None:
        super().__init__("cpu", torch.bfloat16, dense=dense)
        self.device = "meta"
        self.registry = KernelRegistry(
            all_ops(), Machine("cuda", 90), frozenset({"triton", "reference"})
        )


@dataclass(frozen=True)
class Step:
    """A step. `samples`: rows whose logits are needed; `one_token`: each row has one token."""

    tokens: int
    rows: int
    samples: int
    one_token: bool = False


# The largest step of each kind: a long prefill, many last chunks, the same with drafts, a decode.
STEPS = [
    Step(BUDGET, 1, 1),
    Step(BUDGET, ROWS, ROWS),
    Step(BUDGET, ROWS, ROWS + 8),
    Step(ROWS, ROWS, ROWS, one_token=True),
]


def _inputs(step: Step, *, recurrent: bool = False) -> StepInputs[torch.Tensor]:
    def ints(*extents: int) -> torch.Tensor:
        return torch.empty(extents, dtype=torch.int32, device="meta")

    return StepInputs(
        tokens=ints(step.tokens),
        positions=ints(step.tokens),
        slots=ints(step.tokens),
        query_starts=ints(step.rows + 1),
        context_lens=ints(step.rows),
        block_tables=ints(step.rows, CONTEXT // BLOCK),
        sample_rows=ints(step.samples),
        states=StateRows(*(ints(step.rows) for _ in range(6))) if recurrent else None,
    )


def _peaks(model: DeviceModel, live: LiveBytes, *, recurrent: bool = False) -> Iterator[int]:
    for step in STEPS:
        inputs = _inputs(step, recurrent=recurrent)
        gc.collect()
        before = live.peak = live.now
        model.logits(inputs, one_token=step.one_token)
        yield live.peak - before


@pytest.mark.slow
@pytest.mark.parametrize("dense", ["stored", "float8"])
@pytest.mark.parametrize("name", ["llama-8b", "qwen3-8b", "qwen3-0.6b", "qwen3-30b-a3b"])
def test_steps_stay_within_the_formula(
    tmp_path: Path, name: str, dense: Literal["stored", "float8"]
) -> None:
    """Two layers are enough: the next one reuses the memory of the last."""
    shape = replace(SHAPES[name], layers=2)
    folder = write_sparse_checkpoint(shape, tmp_path / name)
    model = load_model(files_at(folder, name), "auto")
    plan = plan_device_memory(model.spec, 0, SETTINGS, 140 << 30)
    cache = replace(plan.cache, blocks=8)
    with LiveBytes() as live:
        placed = DeviceModel(
            model, MetaOps(dense), cache, torch.bfloat16, max_rows=ROWS, max_model_len=CONTEXT
        )
        *prompts, decode = _peaks(placed, live)
    taken = placed.work_bytes + max(prompts)
    # For experts the formula counts inputs and outputs of both products at once.
    least = 0.45 if shape.experts else 0.6
    assert least * plan.work_bytes <= taken <= plan.work_bytes
    assert decode <= plan.graph_bytes
    steady = live.now - placed.work_bytes - placed.pools.size_bytes - 4 * CONTEXT * shape.head_dim
    if dense == "stored":
        assert steady == pytest.approx(placed.weight_bytes, rel=1e-3)
    elif not shape.experts:  # not changed
        matrices = shape.layers * (shape.attention_weights + shape.expert_weights)
        assert steady == pytest.approx(placed.weight_bytes - matrices, rel=1e-3)


@pytest.mark.parametrize("name", list(MODELS))
def test_no_step_reads_from_the_device(tmp_path: Path, name: str) -> None:
    """A CUDA graph does not allow that, and tensors without memory do not either."""
    model = load_model(files_at(write_layered_model(name, tmp_path / name), name), "auto")
    settings = msgspec.structs.replace(SETTINGS, max_model_len=256)
    plan = plan_device_memory(model.spec, 0, settings, 8 << 30)
    placed = DeviceModel(
        model,
        MetaOps("stored"),
        replace(plan.cache, blocks=8),
        torch.bfloat16,
        states=plan.states,
        max_rows=ROWS,
        max_model_len=256,
    )
    for step in STEPS:
        inputs = _inputs(step, recurrent=model.spec.is_recurrent)
        logits = placed.logits(inputs, one_token=step.one_token)
        assert logits.shape == (step.samples, model.spec.vocab_size)


@pytest.mark.parametrize("name", list(LAYERED))
def test_steps_of_unlike_layers_stay_within_the_formula(tmp_path: Path, name: str) -> None:
    shape = LAYERED[name]
    layers = {"num_hidden_layers": 4}
    for key in {"layer_types", "mlp_layer_types"} & set(shape.config):
        layers[key] = shape.config[key][:4]
    shape = replace(shape, config={**shape.config, **layers})
    model = load_model(files_at(write_sparse_checkpoint(shape, tmp_path / name), name), "auto")
    plan = plan_device_memory(model.spec, 0, SETTINGS, 140 << 30)
    cache, states = replace(plan.cache, blocks=8), plan.states
    with LiveBytes() as live:
        before = live.now
        placed = DeviceModel(
            model,
            MetaOps("stored"),
            cache,
            torch.bfloat16,
            states=states,
            max_rows=ROWS,
            max_model_len=CONTEXT,
        )
        steady = live.now - before
        *prompts, decode = _peaks(placed, live, recurrent=model.spec.is_recurrent)
    taken = placed.work_bytes + max(prompts)
    assert 0.4 * plan.work_bytes <= taken <= plan.work_bytes
    assert decode <= plan.graph_bytes
    held = placed.work_bytes + placed.pools.size_bytes + states.size_bytes + plan.rope_bytes
    assert placed.pools.size_bytes == cache.size_bytes
    assert steady - held == pytest.approx(placed.weight_bytes, rel=1e-2)


def test_decodes_of_few_rows_use_smaller_splits(tmp_path: Path) -> None:
    """If the ops allow it, so that one request uses the whole GPU."""
    shape = SHAPES["qwen3-0.6b"].small()
    write_checkpoint(shape, tmp_path / "m", "cpu")
    spec = load_model(files_at(tmp_path / "m", "m"), "auto").spec
    works, fixed = (
        AttentionPlans(spec, "cpu", 32, 512, BLOCK, few_rows=few) for few in (FEW_ROWS, 0)
    )

    def chunks(planner: AttentionPlans, rows: int) -> set[int]:
        one = torch.zeros(rows, dtype=torch.int32)
        inputs = StepInputs(one, one, one, one, one, one[:, None], one)
        return {work.split for work in planner.of_decodes(inputs).values()}

    assert chunks(works, 1) == chunks(works, FEW_ROWS) == {FEW_ROWS_SPLIT}
    assert chunks(works, FEW_ROWS + 1) == chunks(fixed, 1) == {smallest_split()}
    assert works.size_bytes > fixed.size_bytes
