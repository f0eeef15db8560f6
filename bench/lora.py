"""`python -m bench lora`: cost of adapters for 16 rows of the default model, and the bandwidth
floor.

One engine holds random adapters of rank 16 on all linear layers, loaded from PEFT folders as a
client's are. The rows share 0, 1, 8 or 16 adapters; the cases take turns, so that other load on the
machine affects all alike. It also measures the longest step while an adapter is loaded.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench.harness.machine_facts import facts, read_bandwidth
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import AdapterSource, AdapterState, TokenRequest
from penstock.models.decoder.spec import DecoderSpec
from penstock.runtime.load import load_runtime

ROWS = 16
RANK = 16
CASES = (0, 1, 8, 16)
GOALS = {8: 10.0, 16: 20.0}
PROMPT_TOKENS = 16
ALPHA = 16


def measure(model: str, new: int, repeats: int, threads: int | None) -> dict[str, Any]:
    settings = EngineSettings(
        model=model,
        max_num_seqs=ROWS,
        threads=threads,
        enable_prefix_caching=False,
        kv_cache_memory_mb=200,
        lora=LoraSettings(max_adapters=ROWS + 1, max_rank=RANK),
    )
    runtime = load_runtime(settings)
    assert runtime.adapters is not None
    core = EngineCore.for_runtime(runtime, settings)
    with tempfile.TemporaryDirectory() as folder:
        spec = runtime.adapters.spec
        folders = [write_adapter(Path(folder) / f"{seed}", spec, seed) for seed in range(ROWS + 1)]
        sources = [AdapterSource(f"g{seed}", str(path)) for seed, path in enumerate(folders)]
        states = [_load(core, source) for source in sources[:ROWS]]
        steps: dict[int, list[tuple[float, float]]] = {case: [] for case in CASES}
        rounds: list[dict[int, float]] = []
        for repeat in range(repeats + 1):
            order = CASES[repeat % len(CASES) :] + CASES[: repeat % len(CASES)]
            taken = {case: _decode(core, case, new) for case in order}
            if repeat:  # the first case warms up
                for case, times in taken.items():
                    steps[case] += times
                rounds.append({case: _median(times) for case, times in taken.items()})
        loading = _load_under_load(core, sources[ROWS], new)
    weight_bytes = core.info.weight_bytes
    core.close()
    bandwidth = read_bandwidth(1 << 29)
    return {
        "rows": ROWS,
        "rank": RANK,
        "threads": threads,
        "adapter_bytes": states[0].bytes,
        "weight_bytes": weight_bytes,
        "dram_read_gb_s": round(bandwidth, 1),
        "cases": [_case(case, steps, rounds, states[0].bytes, bandwidth) for case in CASES],
        "load_under_load": loading,
    }


def _case(
    case: int,
    steps: dict[int, list[tuple[float, float]]],
    rounds: list[dict[int, float]],
    adapter_bytes: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Return the figures of one case. `cost`: time relative to no adapters, the median over rounds.
    `floor`: the same if reading each adapter once per step were the only cost."""
    step_ms = 1e3 * _median(steps[case])
    cost = statistics.median(100 * (one[case] / one[0] - 1) for one in rounds)
    floor_ms = case * adapter_bytes / bandwidth / 1e6
    return {
        "adapters": case,
        "step_ms": round(step_ms, 2),
        "tokens_a_s": round(1e3 * ROWS / step_ms, 1),
        "processor_ms": round(1e3 * statistics.median(cpu for _, cpu in steps[case]), 2),
        "cost_percent": round(cost, 1),
        "throughput_loss_percent": round(100 * (1 - 1 / (1 + cost / 100)), 1),
        "floor_ms": round(floor_ms, 2),
        "floor_percent": round(100 * floor_ms / (1e3 * _median(steps[0])), 1),
        "goal_percent": GOALS.get(case),
    }


def _median(times: list[tuple[float, float]]) -> float:
    return statistics.median(wall for wall, _ in times)


def _load(core: EngineCore, source: AdapterSource) -> AdapterState:
    future = core.add_adapter(source)
    while not future.done():
        core.step()
        time.sleep(0.001)
    return future.result()


def _submit(core: EngineCore, adapters: int, new: int) -> None:
    random = np.random.default_rng(0)
    for row in range(ROWS):
        prompt = tuple(random.integers(1000, core.info.vocab_size, PROMPT_TOKENS).tolist())
        revision = f"g{row % adapters}" if adapters else ""
        core.submit(
            TokenRequest(f"{row}", prompt, Sampling(temperature=0.0), 0, new, adapter=revision)
        )


def _decode(core: EngineCore, adapters: int, new: int) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of the steps in which every row samples one token."""
    _submit(core, adapters, new)
    times = []
    while core.has_work:
        began = time.perf_counter(), time.process_time()
        chunks = core.step()
        taken = time.perf_counter() - began[0], time.process_time() - began[1]
        if len(chunks) == ROWS and not any(chunk.finish for chunk in chunks):
            times.append(taken)
    return times[1:]


def _load_under_load(core: EngineCore, source: AdapterSource, new: int) -> dict[str, float]:
    """Return the longest step while an adapter is loaded beside 16 rows, and the median step
    before."""
    quiet = [wall for wall, _ in _decode(core, 8, new)]
    _submit(core, 8, new)
    for _ in range(4):
        core.step()
    future, longest, began = core.add_adapter(source), 0.0, time.perf_counter()
    while not future.done() and core.has_work:
        step_began = time.perf_counter()
        core.step()
        longest = max(longest, time.perf_counter() - step_began)
    took = time.perf_counter() - began
    while core.has_work:
        core.step()
    return {
        "load_ms": round(1e3 * took, 1),
        "median_step_ms": round(1e3 * statistics.median(quiet), 2),
        "longest_step_before_ms": round(1e3 * max(quiet), 2),
        "longest_step_ms": round(1e3 * longest, 2),
    }


def write_adapter(folder: Path, spec: DecoderSpec, seed: int, rank: int = RANK) -> Path:
    """Write a PEFT folder with small random float16 factors for every linear layer, so that answers
    stay those of a language model."""
    random = np.random.default_rng(seed)
    shapes = {
        "self_attn.q_proj": (spec.q_rows, spec.hidden_size),
        "self_attn.k_proj": (spec.kv_rows, spec.hidden_size),
        "self_attn.v_proj": (spec.kv_rows, spec.hidden_size),
        "self_attn.o_proj": (spec.hidden_size, spec.q_rows),
        "mlp.gate_proj": (spec.intermediate_size, spec.hidden_size),
        "mlp.up_proj": (spec.intermediate_size, spec.hidden_size),
        "mlp.down_proj": (spec.hidden_size, spec.intermediate_size),
    }
    tensors = {}
    for layer in range(len(spec.layers)):
        for module, (rows, columns) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                values = random.standard_normal(shape) / (columns**0.5 if side == "A" else 50)
                tensors[f"{name}.lora_{side}.weight"] = values.astype(np.float16)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": ALPHA,
        "bias": "none",
        "target_modules": sorted({module.split(".")[1] for module in shapes}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench lora", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--new", type=int, default=48, help="tokens per answer")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = measure(given.model, given.new, given.repeats, given.threads)
    text = json.dumps({"machine": facts(), **result}, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
