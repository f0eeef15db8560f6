"""The image tower of openai/clip-vit-base-patch16 gives the vectors of `transformers`. The weights
are 8-bit integers in an ONNX file, which are converted to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from tests.support.vision_models import encoded, media_spec, picture, save

FILE = "clipvision/clip_encoder.int8.onnx"
GRAPH, NODE, INITIALIZER = 7, 1, 5  # fields of ModelProto and GraphProto
DTYPES = {1: np.dtype("<f4"), 3: np.dtype("i1")}  # TensorProto.DataType


def fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of the fields of a protobuf message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(wire) or varint()
        yield number, message[at : at + size]
        at += size


def initializer(message: memoryview) -> tuple[str, np.ndarray]:
    """Return the name and the array of a TensorProto."""
    shape: list[int] = []
    name, dtype, raw = "", 0, np.empty(0)
    varints: list[int] = []
    for number, value in fields(message):
        match number:
            case 1:
                shape.append(value)
            case 2:
                dtype = value
            case 4 | 9:
                raw = np.frombuffer(value, DTYPES.get(dtype, np.dtype("u1")))
            case 5 if dtype == 3:  # int32_data: one varint per element
                varints += _varints(value)
            case 8:
                name = bytes(value).decode()
    if varints:
        raw = np.array(varints, np.uint64).astype(np.int8)
    return name, raw.reshape(shape) if raw.size == np.prod(shape) else raw


def _varints(packed: memoryview) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in packed:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value & 0xFFFFFFFFFFFFFFFF)
            value = shift = 0
    return found


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the file by their names in transformers, dequantized."""
    (graph,) = (value for number, value in fields(memoryview(path.read_bytes())) if number == GRAPH)
    arrays = dict(initializer(value) for number, value in fields(graph) if number == INITIALIZER)
    tensors = {name: array for name, array in arrays.items() if not name.startswith("onnx::")}
    for number, node in fields(graph):
        if number != NODE:
            continue
        inputs = [bytes(value).decode() for field, value in fields(node) if field == 1]
        (name,) = (bytes(value).decode() for field, value in fields(node) if field == 3)
        if not name.endswith("/MatMul_quant"):
            continue
        stem = inputs[1].removesuffix("_quantized")
        scale, zero = arrays[f"{stem}_scale"], arrays[f"{stem}_zero_point"]
        weight = (arrays[inputs[1]].astype(np.float32) - zero.astype(np.float32)) * scale
        module = name.removesuffix("/MatMul_quant").strip("/").replace("/", ".")
        tensors[f"{module}.weight"] = weight.T
    return {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}


@pytest.fixture(scope="module")
def saved(weights_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, model, image processor)."""
    path = weights_dir / FILE
    if not path.exists():
        pytest.skip(f"{FILE} is not in --weights-dir")
    config = transformers.CLIPVisionConfig(patch_size=16, projection_dim=512)
    model = transformers.CLIPVisionModelWithProjection(config).eval()
    found = tensors_of(path)
    model.load_state_dict({name: found[name] for name in model.state_dict()})
    images = transformers.CLIPImageProcessorPil()
    return save(tmp_path_factory.mktemp("clip"), model, images), model, images


@torch.no_grad()
@pytest.mark.parametrize("size", [(224, 224), (480, 640), (91, 37)], ids=str)
def test_vectors_are_those_of_transformers(saved: Any, size: tuple[int, int]) -> None:
    folder, model, images = saved
    pixels = picture(*size)
    given = images(Image.fromarray(pixels), return_tensors="pt")
    expected = torch.nn.functional.normalize(model(**given).image_embeds)[0].numpy()
    (vector,) = encoded(folder, media_spec(folder).processor.image(pixels))
    assert float(vector @ expected) > 0.9999
    np.testing.assert_allclose(vector, expected, rtol=0, atol=2e-4)
