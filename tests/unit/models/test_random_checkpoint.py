"""Random checkpoints have the layouts of a file and values for which a model stays finite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.kernels.isa.instruction_sets import form_name
from penstock.kernels.weights import Dense, Matrix
from penstock.models.checkpoint.random_checkpoint import STD, RandomCheckpoint
from penstock.models.decoder.layer_weights import LayerWeights
from penstock.models.decoder.sampled_weights import SampledWeights, weight_sizes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.hub.sources import files_at
from penstock.models.loader.model_loader import load_model
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.weight_slices import size_bytes
from tests.support.checkpoints.small_llama import write_small_llama


@pytest.mark.parametrize("form", [None, "int8", "int4", "Q4_0"])
def test_matrices_have_the_layout_of_the_file(tmp_path: Path, form: str | None) -> None:
    files = files_at(write_small_llama(tmp_path / "m"), "m")
    stored, random = (load_model(files, "auto", form=form, values=v) for v in ("stored", "random"))
    assert isinstance(stored.weights, DecoderWeights)
    assert isinstance(random.weights, DecoderWeights)
    own, made = stored.weights.layer(1).gate_up, random.weights.layer(1).gate_up
    assert own is not None and made is not None and own.shape == made.shape
    for mine, other in zip(own.parts, made.parts, strict=True):
        assert form_name(mine) == form_name(other) and size_bytes(mine) == size_bytes(other)
        values = dequantize(other)
        assert abs(values.mean()) < STD / 4 and STD / 3 < values.std() < 3 * STD
    assert random.extra_bytes == stored.extra_bytes


@pytest.mark.parametrize(
    "name", ["Q4_1", "Q5_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"]
)
def test_integers_of_a_gguf_file_keep_their_layout(tmp_path: Path, name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    shape = gguf.quant_shape_to_byte_shape((64, 512), kind)
    writer.add_tensor("a.weight", np.zeros(shape, np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = RandomCheckpoint(GgufFile(tmp_path / "m.gguf")).matrix("a.weight")
    values = dequantize(made)
    assert made.shape == (64, 512) and np.isfinite(values).all()
    assert abs(values.mean()) < STD and 0 < values.std() < 3 * STD


def test_rows_of_a_dense_matrix_differ(tmp_path: Path) -> None:
    files = files_at(write_small_llama(tmp_path / "m"), "m")
    weights = load_model(files, "auto", values="random").weights
    table = weights.embedding()
    assert isinstance(table, Dense) and len(np.unique(table.data, axis=0)) == table.shape[0]


def test_sampled_layers_are_a_smaller_model_of_the_same_ends(tmp_path: Path) -> None:
    weights = load_model(files_at(write_small_llama(tmp_path / "m"), "m"), "auto").weights
    assert isinstance(weights, DecoderWeights)
    sampled = SampledWeights(weights, [1, 1, 0])
    layers = weights.spec.layers
    assert sampled.spec == replace(weights.spec, layers=(*layers, layers[0]), tied_head=True)
    whole, some = ([down(layer) for layer in source.layers()] for source in (weights, sampled))
    assert not np.array_equal(whole[0], whole[1])
    for made, index in zip(some, (1, 1, 0), strict=True):
        assert np.array_equal(made, whole[index])
    head, table = weights.head(), sampled.embedding()
    assert head is not None and isinstance(table, Dense) and sampled.head() is None
    assert np.array_equal(table.data, dense(head.parts[0]))


def down(layer: LayerWeights) -> np.ndarray:
    assert layer.down is not None
    return dense(layer.down.parts[0])


def dense(matrix: Matrix) -> np.ndarray:
    assert isinstance(matrix, Dense)
    return matrix.data


def test_weight_sizes_add_up_to_the_whole(tmp_path: Path) -> None:
    weights = load_model(files_at(write_small_llama(tmp_path / "m"), "m"), "auto").weights
    assert isinstance(weights, DecoderWeights)
    outside, layers = weight_sizes(weights, size_bytes)
    assert outside + sum(layers) == weights.packed_bytes(size_bytes)
    assert len(layers) == 2 and layers[0] == layers[1] > 0
