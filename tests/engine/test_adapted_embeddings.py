"""A sequence with an adapter gets the embedding of a decoder with the adapter merged into it. It
does not depend on its batch, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import draw_adapters, settings, write_merged, write_quantized

from penstock.models.encoder.sentence_transformers import PoolerSpec
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import LoadedEmbedder, load_embedder, load_model
from penstock.runtime.cpu.embedding import NativeEmbedding
from penstock.scheduler import NO_ADAPTER
from tests.support.checkpoints.embedding_checkpoints import (
    add_sentence_files,
    save_sentence_folder,
    small_body,
)
from tests.support.checkpoints.small_llama import VOCAB, write_small_llama

_random = np.random.default_rng(7)
SEQUENCES = [tuple(_random.integers(0, VOCAB, n).tolist()) for n in (24, 3, 1, 17, 24, 9)]
SLOTS = [0, NO_ADAPTER, 2, 1, 3, 0]
BARE = [NO_ADAPTER] * len(SLOTS)


def embedding(model: LoadedEmbedder, **options: Any) -> NativeEmbedding:
    return NativeEmbedding(model, 0, settings("x", **options))


def start(folder: Path, **options: Any) -> NativeEmbedding:
    return embedding(
        load_embedder(files_at(folder, "test"), options.get("dtype", "auto")), **options
    )


def start_file(path: Path) -> NativeEmbedding:
    """Start an embedding model from a GGUF of a decoder's body, whose last states are the
    embeddings."""
    body = load_model(ModelFiles("test", "gguf", path), "auto")
    pooler = PoolerSpec("last")
    return embedding(LoadedEmbedder("test", body.fingerprint, body.spec, body.weights, pooler, ()))


def with_adapters(runtime: NativeEmbedding, folder: Path) -> NativeEmbedding:
    assert runtime.adapters is not None
    for slot, adapter in enumerate(draw_adapters(folder)):
        runtime.adapters.install(slot, runtime.adapters.pack(adapter))
    return runtime


def base(folder: Path, pooling: str = "lasttoken") -> Path:
    return add_sentence_files(write_small_llama(folder / "base"), pooling, normalize=False)


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 2e-5), ("auto", 5e-3)])
@pytest.mark.parametrize("pooling", ["lasttoken", "mean_tokens"])
def test_an_adapter_gives_the_embeddings_of_merged_weights(
    tmp_path: Path, dtype: str, bound: float, pooling: str
) -> None:
    folder = base(tmp_path, pooling)
    runtime = with_adapters(start(folder, dtype=dtype), tmp_path)
    together = runtime.embed(SEQUENCES, SLOTS).copy()
    bare = runtime.embed(SEQUENCES).copy()
    assert np.array_equal(together[1], bare[1])
    for slot, adapter in enumerate(draw_adapters(tmp_path)):
        merged = write_merged(folder, adapter, tmp_path / f"merged-{slot}")
        add_sentence_files(merged, pooling, normalize=False)
        truth = start(merged, dtype="f32", lora=None).embed(SEQUENCES)
        scale = np.abs(truth).max()
        own = [index for index, used in enumerate(SLOTS) if used == slot]
        assert np.abs(together[own] - truth[own]).max() < bound * scale
        assert np.abs(bare[own] - truth[own]).max() > 0.1 * scale, "the adapter must matter"


def test_an_adapter_on_integers_is_as_near_to_merged_weights_as_the_base_is(tmp_path: Path) -> None:
    """The base's error comes from 8-bit activations; an adapter in 8 bits adds little to it."""
    quantized, exact = write_quantized(tmp_path, "Q8_0")
    runtime = with_adapters(start_file(quantized), tmp_path)

    def error(slot: int, folder: Path) -> float:
        add_sentence_files(folder, "lasttoken", normalize=False)
        theirs = start(folder, dtype="f32", lora=None).embed(SEQUENCES)
        ours = runtime.embed(SEQUENCES, [slot] * len(SEQUENCES))
        return float(np.sqrt(((ours - theirs) ** 2).mean() / (theirs**2).mean()))

    bare = error(NO_ADAPTER, exact)
    assert 0 < bare < 0.06
    for slot, adapter in enumerate(draw_adapters(tmp_path)):
        assert error(slot, write_merged(exact, adapter, tmp_path / f"merged-{slot}")) < 2 * bare


@pytest.fixture(scope="module", params=["f32", "auto", "mean", "Q8_0"])
def runtime(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NativeEmbedding]:
    """Yield runtimes with float32, float16 and integer weights, and one with another pooling."""
    folder = tmp_path_factory.mktemp("base")
    if request.param == "Q8_0":
        made = start_file(write_quantized(folder, "Q8_0")[0])
    elif request.param == "mean":
        made = start(base(folder, "mean_tokens"))
    else:
        made = start(base(folder), dtype=request.param)
    yield with_adapters(made, folder)
    made.close()


def test_a_mix_of_adapters_embeds_as_each_sequence_alone(runtime: NativeEmbedding) -> None:
    together = runtime.embed(SEQUENCES, SLOTS).copy()
    for index, (sequence, slot) in enumerate(zip(SEQUENCES, SLOTS, strict=True)):
        assert np.array_equal(runtime.embed([sequence], [slot])[0], together[index])
    backwards = runtime.embed(SEQUENCES[::-1], SLOTS[::-1])
    assert np.array_equal(backwards[::-1], together)
    assert not np.array_equal(together[0], runtime.embed(SEQUENCES)[0])


def test_a_plan_with_adapters_gives_the_bits_of_its_calls(runtime: NativeEmbedding) -> None:
    planned = runtime.embed(SEQUENCES, SLOTS).copy()
    assert np.array_equal(runtime.eager_embed(SEQUENCES, SLOTS), planned)


def test_sequences_without_adapters_take_the_plan_that_knows_none(tmp_path: Path) -> None:
    folder = base(tmp_path)
    adapted: Any = with_adapters(start(folder), tmp_path)
    plain: Any = start(folder, lora=None)
    assert plain.adapters is None
    assert adapted._plan.num_steps == plain._plan.num_steps < adapted._adapter_plan.num_steps
    assert adapted._plan.arena_bytes == adapted._adapter_plan.arena_bytes
    adapted._adapter_plan.profiling = True
    assert np.array_equal(adapted.embed(SEQUENCES, BARE), plain.embed(SEQUENCES))
    assert sum(calls for _, calls in adapted._adapter_plan.profile().values()) == 0
    assert "adapters" in adapted.report and "adapters" not in plain.report


def test_an_encoder_has_no_adapters(tmp_path: Path) -> None:
    runtime = start(save_sentence_folder(tmp_path, small_body("Bert")))
    assert runtime.adapters is None and "adapters" not in runtime.report
