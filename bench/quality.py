"""Error of the fast arithmetic against the exact one: mean KL divergence of the next token.

    python -m bench quality MODEL TEXT [--chunks 12] [--quantize int4] [--kv-cache-dtype int8]

The text is cut into chunks of 512 tokens, each computed alone. Only the second half of each chunk
counts, as in llama.cpp's `llama-perplexity --kl-divergence`, so that figures for the same file and
text are comparable. The base is the same weights, dequantized, in float32 with a float32 cache: the
rounding of a half-precision cache and of attention over it counts too (llama.cpp's base uses the
same cache as the model compared with it).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bench.harness.machine_facts import facts
from penstock.config import EngineSettings
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.step_inputs import CacheDtype, LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model, load_text_parts
from penstock.quant.quantize import Bits
from penstock.runtime.weight_quantization import integer_bits
from penstock.text import load_tokenizer

Form: TypeAlias = Literal["int8", "int4"]

CHUNK = 512
BLOCK = 16


class Scorer:
    """Computes all logits of a chunk, with the weights in one arithmetic."""

    def __init__(
        self, path: Path, dtype: Any, cache_dtype: CacheDtype, bits: Bits | None = None
    ) -> None:
        model = load_model(files_at(path, path.stem), dtype, bits=bits)
        spec = model.spec
        ops = NativeOps.eager(Pool(EngineSettings().threads or 2))
        shape = (CHUNK // BLOCK, spec.num_kv_heads, spec.head_dim, BLOCK)
        self._caches: list[LayerCache[Any]] = [
            ops.new_cache(shape, cache_dtype) for _ in spec.layers
        ]
        self._ops = ops
        self._decoder: Decoder[Any] = Decoder(spec, model.weights, ops, CHUNK)

    def log_probabilities(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return log probabilities [T, V] of the second half's rows."""
        count = len(tokens)
        places = np.arange(count, dtype=np.int32)
        inputs = StepInputs(
            tokens=tokens,
            positions=places,
            slots=places,
            query_starts=np.array([0, count], np.int32),
            context_lens=np.array([count], np.int32),
            block_tables=np.arange(count // BLOCK, dtype=np.int32)[None],
            sample_rows=places[count // 2 : -1].copy(),
        )
        logits = self._decoder.forward(self._ops, inputs, self._caches).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        scores: npt.NDArray[np.float64] = logits
        return scores


def divergence(
    path: Path,
    text: str,
    chunks: int,
    quantize: Form | None = None,
    cache_dtype: CacheDtype = "f16",
    base: Literal["exact", "f16"] = "exact",
) -> dict[str, float]:
    """Return mean and high quantiles of KL(base || fast), agreement of the best token, and
    perplexities. `base`: "f16" is the fast arithmetic with a float16 cache, which shows the error
    of `cache_dtype` alone."""
    parts = load_text_parts(files_at(path, path.stem))
    tokens = np.array(load_tokenizer(parts).encode(text)[: chunks * CHUNK], np.int32)
    if len(tokens) < CHUNK:
        raise SystemExit(f"the text has {len(tokens)} tokens; a chunk has {CHUNK}")
    bits = integer_bits(EngineSettings(quantization=quantize))
    exact = Scorer(path, "f32", "f32") if base == "exact" else Scorer(path, "auto", "f16", bits)
    fast = Scorer(path, "auto", cache_dtype, bits)
    kl, agree, nll = [], [], []
    for start in range(0, len(tokens) - CHUNK + 1, CHUNK):
        chunk = tokens[start : start + CHUNK]
        p, q = exact.log_probabilities(chunk), fast.log_probabilities(chunk)
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        agree.append(p.argmax(axis=1) == q.argmax(axis=1))
        rows = np.arange(len(p))
        following = chunk[CHUNK // 2 + 1 :]
        nll.append(np.stack([-p[rows, following], -q[rows, following]]))
    all_kl, all_nll = np.concatenate(kl), np.concatenate(nll, axis=1)
    return {
        "tokens": len(all_kl),
        "mean_kl": float(all_kl.mean()),
        "median_kl": float(np.median(all_kl)),
        "p99_kl": float(np.quantile(all_kl, 0.99)),
        "same_best": float(np.concatenate(agree).mean()),
        "perplexity_base": float(np.exp(all_nll[0].mean())),
        "perplexity": float(np.exp(all_nll[1].mean())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench quality", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--quantize", choices=("int8", "int4"))
    parser.add_argument("--kv-cache-dtype", choices=("f16", "f32", "int8"), default="f16")
    parser.add_argument("--base", choices=("exact", "f16"), default="exact")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8")[: arguments.chunks * CHUNK * 8]
    result = {
        "machine": facts(),
        "model": arguments.model.name,
        "quantize": arguments.quantize,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "base": arguments.base,
        "penstock": divergence(
            arguments.model,
            text,
            arguments.chunks,
            arguments.quantize,
            arguments.kv_cache_dtype,
            arguments.base,
        ),
    }
    print(json.dumps(result["penstock"], indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
