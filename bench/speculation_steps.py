"""`python -m bench speculation_steps`: cost of speculation on text that does not repeat, by step.

Three engines with their own weights, two without speculation and one with it, make the same tokens
from the same seeds. They take turns at every step, on one kernel thread each, so that CPU time is
the cost and other load on the machine affects all alike. The difference between the two without
speculation is the error of the method.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

from bench.harness.machine_facts import facts
from bench.speculation import FRESH, chat_request
from penstock.config import EngineSettings, read_environment
from penstock.engine.core import EngineCore
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.model_loader import load_text_parts
from penstock.runtime.load import load_runtime
from penstock.text import Tokenizer, load_tokenizer

WAYS = ("without", "without again", "with")
TEMPERATURE = 1.0


def measure(model: str, streams: int, new: int, repeats: int) -> dict[str, Any]:
    tokenizer = load_tokenizer(load_text_parts(resolve_model(model, read_environment().home)))
    cores = {way: _core(model, streams, way) for way in WAYS}
    steps: list[dict[str, float]] = []
    totals: list[dict[str, float]] = []
    for repeat in range(repeats):
        for name in FRESH:
            taken = _run(cores, tokenizer, name, streams, new, 100 * repeat)
            steps += [step for step in taken if len(step) == len(WAYS)]
            totals.append({way: sum(step.get(way, 0.0) for step in taken) for way in WAYS})
    gauges = cores["with"].gauges()
    for core in cores.values():
        core.close()
    return {
        "streams": streams,
        "drafted": gauges.draft_tokens,
        "confirmed": gauges.accepted_tokens,
        "steps": {way: _ratio(steps, way) for way in WAYS[1:]},
        "runs": {way: _ratio(totals, way) for way in WAYS[1:]},
    }


def _core(model: str, streams: int, way: str) -> EngineCore:
    settings = EngineSettings(
        model=model,
        max_num_seqs=streams,
        threads=1,
        enable_prefix_caching=False,
        kv_cache_memory_mb=200,
        speculative_algorithm="ngram" if way == "with" else "none",
    )
    return EngineCore.for_runtime(load_runtime(settings), settings)


def _run(
    cores: dict[str, EngineCore],
    tokenizer: Tokenizer,
    name: str,
    streams: int,
    new: int,
    seed: int,
) -> list[dict[str, float]]:
    """Return the seconds of each engine in each round."""
    for core in cores.values():
        for row in range(streams):
            core.submit(
                chat_request(tokenizer, FRESH[name], TEMPERATURE, seed + row, f"{row}", new)
            )
    rounds: list[dict[str, float]] = []
    tokens = dict.fromkeys(WAYS, 0)
    while any(core.has_work for core in cores.values()):
        first = len(rounds) % len(WAYS)
        taken = {}
        for way in WAYS[first:] + WAYS[:first]:
            if cores[way].has_work:
                began = time.process_time()
                chunks = cores[way].step()
                taken[way] = time.process_time() - began
                tokens[way] += sum(len(chunk.tokens) for chunk in chunks)
        rounds.append(taken)
    assert len(set(tokens.values())) == 1, tokens
    return rounds


def _ratio(rows: list[dict[str, float]], way: str) -> dict[str, float]:
    """Return the speed relative to the first engine."""
    logs = [math.log(row[WAYS[0]] / row[way]) for row in rows]
    return {
        "pairs": len(logs),
        "median": round(math.exp(statistics.median(logs)), 4),
        "mean": round(math.exp(statistics.mean(logs)), 4),
        "standard_error": round(statistics.stdev(logs) / len(logs) ** 0.5, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench speculation_steps", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--new", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    cases = [measure(given.model, streams, given.new, given.repeats) for streams in given.streams]
    result = json.dumps({"machine": facts(), "cases": cases}, indent=1)
    print(result)
    if given.out:
        given.out.write_text(result + "\n")


if __name__ == "__main__":
    main()
