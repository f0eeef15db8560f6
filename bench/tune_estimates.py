"""Compare the speeds that tuning estimates with those of the loaded model.

    python -m bench tune_estimates MODEL [--types none,int8,int4] [--rounds 2] [--context 1024]

In each round every type is estimated from measured layers and then loaded and measured as `penstock
bench` does, so that a slow phase of the machine meets both. The result is the ratio estimate / load
of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from bench.harness.machine_facts import facts
from penstock.cli.engine_benchmark import measure
from penstock.config import EngineSettings, read_environment
from penstock.engine.local import LocalEngine
from penstock.tune.job import run_job
from penstock.tune.outcome import TuneJob
from penstock.tune.types import TuneModelRequest

PROMPT = 512
ANSWER = 32


def estimate(model: str, kind: str, context: int, rows: int) -> dict[str, float]:
    """Return the speeds that tuning estimates."""
    request = TuneModelRequest(
        model, cpu=True, max_seq_len=context, max_batch_size=rows, requested_isq=kind
    )
    found = run_job(TuneJob(request, EngineSettings(model=model), model), read_environment())
    speed = found.candidates[0].speed
    assert speed is not None, found.warnings
    return {
        "prefill": speed.prefill_tokens_per_s,
        "decode": speed.decode_tokens_per_s,
        "decode at the end": speed.decode_at_context_tokens_per_s,
        "batch decode": speed.batch_decode_tokens_per_s,
    }


async def load(model: str, kind: str, context: int, rows: int) -> dict[str, float]:
    """Return the speeds of the loaded model."""
    settings = EngineSettings(
        model=model,
        device="cpu",
        quantization=None if kind == "none" else kind,
        max_model_len=max(context, PROMPT + 3 * ANSWER),
        max_num_seqs=rows,
        enable_prefix_caching=False,
    )
    engine = await LocalEngine.start(settings)
    try:
        await measure(engine, 64, 4, 1)  # allocates memory
        one = await measure(engine, PROMPT, ANSWER, 1)
        deep = await measure(engine, context - ANSWER, ANSWER // 2, 1)
        # Other prompts are prefilled beside the first answer, at whose end all sequences decode.
        many = await measure(engine, PROMPT, 3 * ANSWER, rows)
        together = many.token_gaps_s[: 3 * ANSWER - 1][-ANSWER // 2 :]
        return {
            "prefill": one.prompt_rate,
            "decode": 1 / statistics.median(one.token_gaps_s),
            "decode at the end": 1 / statistics.median(deep.token_gaps_s),
            "batch decode": rows / statistics.median(together),
        }
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench tune_estimates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model")
    parser.add_argument("--types", default="none,int8,int4")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    sizes = arguments.context, arguments.rows
    taken: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(arguments.rounds):
        for kind in arguments.types.split(","):
            found = estimate(arguments.model, kind, *sizes)
            loaded = asyncio.run(load(arguments.model, kind, *sizes))
            for name, rate in found.items():
                taken[kind, name]["estimate"].append(rate)
                taken[kind, name]["load"].append(loaded[name])
    rows: list[dict[str, Any]] = []
    for (kind, name), rates in taken.items():
        medians = {source: statistics.median(values) for source, values in rates.items()}
        ratio = medians["estimate"] / medians["load"]
        rows.append({"type": kind, "figure": name, **medians, "ratio": ratio})
        print(f"{kind:6} {name:18} {medians['estimate']:8.1f} {medians['load']:8.1f} {ratio:6.2f}")
    if arguments.out:
        result = {"machine": facts(), "model": arguments.model, "rows": rows}
        arguments.out.write_bytes(msgspec.json.format(json.dumps(result).encode(), indent=1))


if __name__ == "__main__":
    main()
