"""Runs prompts with adapters through a runtime, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import peft
import torch

from penstock.adapters.peft_folder import read_adapter
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.runtime import CpuRuntime, start_runtime
from penstock.scheduler import Admit, AppendBlocks, Chunk, StepPlan

BLOCK, ROWS, CONTEXT = 16, 4, 64
LORA = LoraSettings(max_adapters=4, max_rank=16)


NAMES = ("first", "second")


def with_random_adapters(model: Any, folder: Path, *configs: dict[str, Any]) -> Any:
    """Wrap `model` with one random adapter per config, with the names NAMES, and save each in the
    subfolder with its name."""
    adapted = None
    for name, config in zip(NAMES, configs, strict=False):
        lora = peft.LoraConfig(task_type="CAUSAL_LM", **config)
        if adapted is None:
            adapted = peft.get_peft_model(model, lora, adapter_name=name)
        else:
            adapted.add_adapter(name, lora)
    assert adapted is not None
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.15)
    adapted.save_pretrained(folder)
    return adapted


@torch.no_grad()
def truth(adapted: Any, tokens: Sequence[int], adapter: int | None) -> npt.NDArray[np.float32]:
    """Return the logits [V] of the last token by transformers and `peft`. `adapter`: its index."""

    def logits() -> Any:
        return adapted(torch.tensor([list(tokens)])).logits[0, -1].numpy()

    if adapter is None:
        with adapted.disable_adapter():
            return logits()
    adapted.set_adapter(NAMES[adapter])
    return logits()


@dataclass
class AdaptedRows:
    """The rows of a runtime. `steps`: number of steps so far."""

    runtime: CpuRuntime
    steps: int = 0
    used: tuple[int, ...] = field(default=())

    def last_logits(
        self, prompts: Sequence[tuple[Sequence[int], int | None]], cuts: Sequence[int] = ()
    ) -> npt.NDArray[np.float32]:
        """Return [prompts, V]: the logits of the last token of each prompt, with the adapter in
        its slot. All prompts are computed together, in chunks that end at the positions `cuts`."""
        per_row = CONTEXT // BLOCK
        admits, blocks = [], []
        for row, (tokens, slot) in enumerate(prompts):
            own = -1 if slot is None else slot
            admits.append(
                Admit(row, tuple(tokens), len(tokens), Sampling(), 0, None, adapter_slot=own)
            )
            blocks.append(AppendBlocks(row, tuple(range(row * per_row, (row + 1) * per_row))))
        found = {}
        starts = [0] * len(prompts)
        for cut in (*cuts, CONTEXT):
            chunks = []
            for row, (tokens, _) in enumerate(prompts):
                end = min(cut, len(tokens))
                if end > starts[row]:
                    length = end - starts[row]
                    chunks.append(Chunk(row, starts[row], length, end == len(tokens)))
                    starts[row] = end
            if not chunks:
                continue
            self.steps += 1
            plan = StepPlan(self.steps, self.used, tuple(admits), tuple(blocks), tuple(chunks))
            self.runtime._rows.apply(plan)
            logits = np.array(self.runtime._backend.logits(self.runtime._rows.inputs(plan.chunks)))
            sampled = [chunk.row for chunk in chunks if chunk.samples]
            found |= dict(zip(sampled, logits, strict=True))
            self.used, admits, blocks = (), [], []
        self.used = tuple(range(len(prompts)))
        return np.stack([found[row] for row in range(len(prompts))])


@contextmanager
def adapted_rows(path: Path, adapters: Path) -> Iterator[AdaptedRows]:
    """Start a runtime of a folder or a .gguf file, with the adapters NAMES in the folder `adapters`
    in slots 0 and 1."""
    settings = EngineSettings(
        model=str(path),
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=ROWS * CONTEXT,
        block_size=BLOCK,
        threads=2,
        lora=LORA,
        dtype="f32",
    )
    files = files_at(path, path.name) if path.is_dir() else ModelFiles(path.name, "gguf", path)
    runtime = start_runtime(files, settings)
    assert runtime.adapters is not None
    for slot, name in enumerate(NAMES):
        adapter = read_adapter(adapters / name, runtime.adapters.spec, LORA)
        runtime.adapters.install(slot, runtime.adapters.pack(adapter))
    yield AdaptedRows(runtime)
    runtime.close()
