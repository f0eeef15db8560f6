"""Error of the fast arithmetic against the exact one: mean KL divergence of the next token.

    python -m bench quality MODEL TEXT [--chunks 12] [--quantization Q4_K] [--kv-cache-dtype int8]
        [--cpu-isa amx]

The base is the same weights, dequantized, in float32 with a float32 cache.
`penstock.quantizing.quality` says which tokens count.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from bench.harness.machine_facts import facts
from penstock.config import EngineSettings
from penstock.kernels.isa.instruction_sets import IsaSelection
from penstock.kernels.step_inputs import CacheDtype
from penstock.quantizing.quality import Scorer, compare, text_tokens
from penstock.runtime.weight_quantization import weight_form


def divergence(
    path: Path,
    text: str,
    chunks: int,
    quantization: str | None = None,
    cache_dtype: CacheDtype = "f16",
    base: Literal["exact", "f16"] = "exact",
    isa: str | None = None,
) -> dict[str, float]:
    """Return mean and high quantiles of KL(base || fast), agreement of the best token, and
    perplexities. `base`: "f16" is the fast arithmetic with a float16 cache, which shows the error
    of `cache_dtype` alone. `isa`: the ISA of the fast arithmetic; None: the widest ISA of the CPU,
    which multiplies prompt tokens like others."""
    tokens = text_tokens(path, text, chunks)
    threads = EngineSettings().threads or 2
    form = weight_form(EngineSettings(quantization=quantization))
    if base == "exact":
        exact = Scorer(path, "f32", "f32", threads)
    else:
        exact = Scorer(path, "auto", "f16", threads, form)
    isas = None if isa is None else IsaSelection.all_of(isa)
    return asdict(compare(exact, Scorer(path, "auto", cache_dtype, threads, form, isas), tokens))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench quality", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--quantization", "--quantize", help="as for `penstock serve`")
    parser.add_argument("--kv-cache-dtype", choices=("f16", "f32", "int8"), default="f16")
    parser.add_argument("--cpu-isa")
    parser.add_argument("--base", choices=("exact", "f16"), default="exact")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8")
    result = {
        "machine": facts(),
        "model": arguments.model.name,
        "quantization": arguments.quantization,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "base": arguments.base,
        "penstock": divergence(
            arguments.model,
            text,
            arguments.chunks,
            arguments.quantization,
            arguments.kv_cache_dtype,
            arguments.base,
            arguments.cpu_isa,
        ),
    }
    print(json.dumps(result["penstock"], indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
