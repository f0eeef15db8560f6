"""`python -m bench kv_cache MODEL`: decode with each type of the CPU's KV cache, at long contexts.

A step decodes one token of one sequence whose context holds random keys and values, so that long
contexts need no prefill; attention does the same work over any content. The types take turns, and
each time is the median of its steps. Contexts may exceed the model's.

With `--peers VENV`, an environment with the PyPI package `xllamacpp`, llama.cpp decodes the same
GGUF file in turns with us, with its float16 and its q8_0 cache. It has to compute each context
first, which takes minutes from 8,192 tokens on, and contexts must not exceed the model's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.harness.machine_facts import facts
from penstock.config import EngineSettings
from penstock.kernels.native import NativeOps, Pool, plan_arguments
from penstock.kernels.step_inputs import CacheDtype, LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.runtime.cache_shape import CacheShape
from penstock.runtime.cpu.kv_cache import KvCache

BLOCK: Final = 16
THREADS: Final = EngineSettings().threads or 2
WORKER: Final = Path(__file__).parent / "workers" / "xllamacpp_kv_cache.py"
PEER_TOKENS: Final = 8
"""Tokens that the peer decodes in a turn, and our steps between two of its turns."""
TYPES: Final[dict[CacheDtype, tuple[int, int]]] = {"f16": (2, 0), "int8": (1, 4)}
"""Type -> bytes of an element and of a scale."""


class Decoding:
    """Decodes one token at the end of a context of random keys and values."""

    def __init__(self, model: LoadedModel, ops: NativeOps, dtype: CacheDtype, context: int) -> None:
        item_bytes, scale_bytes = TYPES[dtype]
        blocks = -(-context // BLOCK)
        spec = replace(model.spec, max_model_len=context)
        shape = CacheShape(blocks, BLOCK, spec.caches, item_bytes, scale_bytes=scale_bytes)
        self._pool = KvCache(shape)
        self.cache_bytes = shape.size_bytes
        random = np.random.default_rng(0)
        for cache in self._pool.present:
            _fill(cache, random)
        decoder: Decoder[Any] = Decoder(spec, model.weights, ops, context)
        recorder = ops.recorder(1, 1, 1, blocks)
        logits = decoder.forward(recorder, recorder.inputs, self._pool.caches)
        self._plan = recorder.finish(logits)
        table = random.permutation(blocks).astype(np.int32)
        last = context - 1
        self._step = plan_arguments(
            StepInputs(
                tokens=np.array([1], np.int32),
                positions=np.array([last], np.int32),
                slots=np.array([table[last // BLOCK] * BLOCK + last % BLOCK], np.int32),
                query_starts=np.array([0, 1], np.int32),
                context_lens=np.array([context], np.int32),
                block_tables=table[None],
                sample_rows=np.array([0], np.int32),
            )
        )

    def step_s(self) -> float:
        """Run a step and return its time."""
        start = time.perf_counter()
        self._plan.run(*self._step)
        return time.perf_counter() - start


def _fill(cache: LayerCache[Any], random: np.random.Generator) -> None:
    numbers = random.standard_normal(1 << 12, np.float32)
    for part in (cache.keys, cache.values):
        for block in part:
            if part.dtype == np.int8:
                flat = block.reshape(len(block), -1)
                codes = flat.shape[1] - 4 * BLOCK
                flat[:, :codes] = np.resize(np.clip(32 * numbers, -127, 127), codes)
                flat[:, codes:].view(np.float32)[...] = 1 / 32
            else:
                block[...] = np.resize(numbers, block.shape)


class Peer:
    """llama.cpp in a process of its own, from the environment `venv`."""

    def __init__(self, venv: Path, model: Path, context: int, threads: int) -> None:
        words = (venv / "bin" / "python", WORKER, model, context, PEER_TOKENS, threads)
        self._process = subprocess.Popen(
            list(map(str, words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read("READY")

    def token_ms(self) -> dict[str, float]:
        """Decode some tokens and return the milliseconds of one, by type of the cache."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._read("RESULT "))
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _read(self, start: str) -> str:
        """Return the rest of the next line that begins with `start`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line.removeprefix(start)
        raise SystemExit("llama.cpp ended early; run bench/workers/xllamacpp_kv_cache.py by hand")


def measure(
    model: LoadedModel, context: int, steps: int, peer: Peer | None = None
) -> dict[str, Any]:
    """Return the milliseconds of a step and the MiB of the cache, by type, and those of a peer's
    tokens."""
    ops = NativeOps.eager(Pool(THREADS))
    decodings = {dtype: Decoding(model, ops, dtype, context) for dtype in TYPES}
    times: dict[str, list[float]] = {dtype: [] for dtype in TYPES}
    theirs: dict[str, list[float]] = {}
    for step in range(steps):
        for dtype, decoding in decodings.items():
            times[dtype].append(decoding.step_s())
        if peer is not None and step % PEER_TOKENS == 0:
            for kind, token_ms in peer.token_ms().items():
                theirs.setdefault(kind, []).append(token_ms)
    own = _own_figures(times, decodings)
    peers = {
        f"llama.cpp {dtype}": {
            "step_ms": round(statistics.median(each), 3),
            "fastest_ms": round(min(each), 3),
        }
        for dtype, each in theirs.items()
    }
    return own | peers


def _own_figures(
    times: dict[str, list[float]], decodings: Mapping[CacheDtype, Decoding]
) -> dict[str, Any]:
    return {
        dtype: {
            "step_ms": round(1e3 * statistics.median(times[dtype]), 3),
            "fastest_ms": round(1e3 * min(times[dtype]), 3),
            "cache_mib": round(decodings[dtype].cache_bytes / 2**20, 1),
        }
        for dtype in TYPES
    }


def main() -> None:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="bench kv_cache", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 8192, 32768])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--peers", type=Path, help="environment with xllamacpp")
    arguments = parser.parse_args()
    model = load_model(files_at(arguments.model, arguments.model.stem), "auto")
    result: dict[str, Any] = {"machine": facts(), "model": arguments.model.name}
    for context in arguments.contexts:
        peer = None
        if arguments.peers is not None:
            peer = Peer(arguments.peers, arguments.model, context, THREADS)
        try:
            result[str(context)] = measure(model, context, arguments.steps, peer)
        finally:
            if peer is not None:
                peer.close()
        print(context, json.dumps(result[str(context)]), flush=True)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
