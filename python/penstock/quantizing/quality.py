"""Measures the loss of a quantized model: mean KL divergence of the next token, and perplexity.

The text is cut into chunks of 512 tokens, each computed alone. Only the second half of each chunk
counts, as in llama.cpp's `llama-perplexity --kl-divergence`, so that figures for the same file and
text are comparable. The base is computed in float32 with a float32 cache: the rounding of a
half-precision cache and of attention over it counts too (llama.cpp's base uses the same cache as
the model compared with it). All tokens are prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.config.weight_types import WeightForm
from penstock.kernels.isa.instruction_sets import IsaSelection
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.step_inputs import CacheDtype, LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model, load_text_parts
from penstock.text import load_tokenizer

CHUNK: Final = 512
BLOCK: Final = 16


class LogProbabilities(Protocol):
    """A model, or its remembered results."""

    def log_probabilities(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """See Scorer."""
        ...


class Scorer:
    """Computes the logits of chunks, with the weights of a model in one arithmetic."""

    def __init__(
        self,
        path: Path,
        dtype: Literal["auto", "f32"],
        cache_dtype: CacheDtype,
        threads: int,
        form: WeightForm | None = None,
        isas: IsaSelection | None = None,
    ) -> None:
        """Load the decoder. `isas`: None for the widest ISA of the CPU. Raises ModelError if the
        files cannot be read, or if layers have other states than keys and values."""
        model = load_model(files_at(path, path.stem), dtype, form=form, threads=threads)
        spec = model.spec
        if any(layer.mixer is not None for layer in spec.layers):
            raise ModelError(f"{path}: quality is measured for layers with attention only")
        self._ops = NativeOps.eager(Pool(threads), isas)
        shape = (CHUNK // BLOCK, spec.num_kv_heads, spec.head_dim, BLOCK)
        self._caches: list[LayerCache[Any]] = [
            self._ops.new_cache(shape, cache_dtype) for _ in spec.layers
        ]
        self._decoder: Decoder[Any] = Decoder(spec, model.weights, self._ops, CHUNK)

    def log_probabilities(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """Return log probabilities [T, V] of the second half's rows."""
        count = len(tokens)
        sampled = np.arange(count // 2, count - 1, dtype=np.int32)
        places = np.arange(count, dtype=np.int32)
        inputs = StepInputs(
            tokens=tokens,
            positions=places,
            slots=places,
            query_starts=np.array([0, count], np.int32),
            context_lens=np.array([count], np.int32),
            block_tables=np.arange(count // BLOCK, dtype=np.int32)[None],
            sample_rows=sampled,
            is_prompt=np.ones(count, np.int32),
            sampled_is_prompt=np.ones(len(sampled), np.int32),
        )
        logits = self._decoder.forward(self._ops, inputs, self._caches).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        scores: npt.NDArray[np.float64] = logits
        return scores


@dataclass(frozen=True, slots=True)
class Quality:
    """The loss of a model against its base, over `tokens` next tokens.

    - `mean_kl`, `median_kl`, `p99_kl`: of KL(base || model), in nats.
    - `same_best`: the part of the tokens for which both find the same one most likely.
    - `perplexity_base`, `perplexity`: of the base and of the model.
    """

    tokens: int
    mean_kl: float
    median_kl: float
    p99_kl: float
    same_best: float
    perplexity_base: float
    perplexity: float


def text_tokens(path: Path, text: str, chunks: int) -> npt.NDArray[np.int32]:
    """Return the first tokens of a text, at most `chunks` chunks. Raises ModelError if they make no
    whole chunk."""
    tokenizer = load_tokenizer(load_text_parts(files_at(path, path.stem)))
    tokens = np.array(tokenizer.encode(text[: chunks * CHUNK * 8])[: chunks * CHUNK], np.int32)
    if len(tokens) < CHUNK:
        raise ModelError(f"the text has {len(tokens)} tokens; a chunk has {CHUNK}")
    return tokens[: len(tokens) // CHUNK * CHUNK]


def compare(
    base: LogProbabilities,
    model: LogProbabilities,
    tokens: npt.NDArray[np.int32],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Quality:
    """Measure the loss of `model` against `base` over whole chunks of tokens. `progress`: called
    with the number of tokens that are done, and of all."""
    kl, agree, nll = [], [], []
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        p, q = base.log_probabilities(chunk), model.log_probabilities(chunk)
        kl.append((np.exp(p) * (p - q)).sum(axis=1))
        agree.append(p.argmax(axis=1) == q.argmax(axis=1))
        rows = np.arange(len(p))
        following = chunk[CHUNK // 2 + 1 :]
        nll.append(np.stack([-p[rows, following], -q[rows, following]]))
        progress(start + CHUNK, len(tokens))
    all_kl, all_nll = np.concatenate(kl), np.concatenate(nll, axis=1)
    return Quality(
        tokens=len(all_kl),
        mean_kl=float(all_kl.mean()),
        median_kl=float(np.median(all_kl)),
        p99_kl=float(np.quantile(all_kl, 0.99)),
        same_best=float(np.concatenate(agree).mean()),
        perplexity_base=float(np.exp(all_nll[0].mean())),
        perplexity=float(np.exp(all_nll[1].mean())),
    )
