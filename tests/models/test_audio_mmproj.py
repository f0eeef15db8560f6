"""`mmproj` GGUF files with audio encoders give the features, tokens and rows of their folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file
from tower_runner import encode, encode_with

from penstock.base.errors import ModelError
from penstock.models.families.registry import media_spec_of_folder, media_spec_of_mmproj
from penstock.models.media.prepared import Sound
from penstock.quant.gguf.gguf_file import GgufFile
from tests.support.speech.audio_models import CASES, LENGTHS, RATE, save, small_model, sound
from tests.support.speech.ultravox import AUDIO, STACK, small_ultravox

_NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 8)
_PARTS = ("audio_tower.", "multi_modal_projector.")


@dataclass(frozen=True)
class Family:
    """A family. `write(folder)`: writes a small folder. `stack`: the positions of a row, None: the
    file does not have them. `placeholder`: in the file."""

    projector: str
    write: Callable[[Path], object]
    layers: int
    inner: int
    stack: int | None
    placeholder: str


def hearing(name: str) -> Callable[[Path], object]:
    return lambda folder: save(folder, small_model(CASES[name]))


FAMILIES = {
    "qwen2-audio": Family("qwen2a", hearing("qwen2-audio"), 3, 48, None, "<|AUDIO|>"),
    "voxtral": Family("voxtral", hearing("voxtral"), 3, 128, 4, "[BEGIN_AUDIO][AUDIO]"),
    "ultravox": Family(
        "ultravox",
        lambda folder: small_ultravox(folder, is_middle=True),
        AUDIO["encoder_layers"],  # type: ignore[arg-type]
        AUDIO["encoder_ffn_dim"],  # type: ignore[arg-type]
        STACK,
        "<|audio|>",
    ),
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(folder, family)."""
    family = FAMILIES[request.param]
    made = tmp_path_factory.mktemp("hearing")
    family.write(made)
    return made, family


def export(path: Path, folder: Path, family: Family, kind: str = "f32", **keys: int) -> Path:
    """Write the tower of a folder as llama.cpp's converter does. `keys`: override those of the
    file. `kind`: the type of the matrices."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_audio_encoder(True)
    writer.add_clip_projector_type(family.projector)
    sizes = {
        "embedding_length": 32,
        "feed_forward_length": family.inner,
        "block_count": family.layers,
        "attention.head_count": 2,
        "num_mel_bins": 128,
    }
    if family.stack is not None:
        sizes["projector.stack_factor"] = family.stack
    for key, value in (sizes | keys).items():
        writer.add_uint32(f"clip.audio.{key}", value)
    writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    for name, tensor in load_file(folder / "model.safetensors").items():
        own = name.removeprefix("model.")
        if own.startswith(_PARTS):
            _add(writer, own, tensor.astype(np.float32), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, kind: str) -> None:
    if name.startswith("multi_modal_projector"):
        name = f"audio.{name}"
    renamed = _NAMES.get_name(name, try_suffixes=(".weight", ".bias"))
    assert renamed is not None, name
    if ".conv" in name:
        tensor = tensor[:, None] if name.endswith(".bias") else tensor.astype(np.float16)
        writer.add_tensor(renamed, np.ascontiguousarray(tensor))
    elif kind != "f32" and tensor.ndim == 2 and "embed_positions" not in name:
        fits = kind != "q8_0" or tensor.shape[1] % 32 == 0
        stored = gguf.GGMLQuantizationType[kind.upper() if fits else "F16"]
        writer.add_tensor(renamed, gguf.quantize(tensor, stored), raw_dtype=stored)
    else:
        writer.add_tensor(renamed, tensor)


@pytest.mark.parametrize("samples", LENGTHS[:3])
def test_rows_and_tokens_are_those_of_the_folder(folder: Any, tmp_path: Path, samples: int) -> None:
    path, family = folder
    file = GgufFile(export(tmp_path / "mmproj.gguf", path, family))
    read, whole = media_spec_of_mmproj(file), media_spec_of_folder(path)
    assert whole is not None
    assert read.processor.placeholders == {"audio": family.placeholder}
    media = read.processor.audio(Sound(sound(samples), RATE))
    assert media == whole.processor.audio(Sound(sound(samples), RATE))
    expansion = read.processor.expand(media, lambda _: [7])
    before = len(expansion.token_ids) - expansion.runs[0][1]
    assert before == family.placeholder.count("[BEGIN_AUDIO]")
    assert expansion.runs[0][1] == whole.processor.expand(media, lambda _: []).runs[0][1]
    rows, expected = encode_with(read, file, media).rows, encode(whole, path, media).rows
    assert rows.shape == expected.shape
    # Convolutions are float16 in the file.
    assert np.abs(rows - expected).max() <= 5e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_files_of_other_types(folder: Any, tmp_path: Path, kind: str) -> None:
    path, family = folder
    plain = GgufFile(export(tmp_path / "plain.gguf", path, family))
    file = GgufFile(export(tmp_path / "mmproj.gguf", path, family, kind))
    spec = media_spec_of_mmproj(file)
    media = spec.processor.audio(Sound(sound(16_001), RATE))
    rows, expected = (encode_with(spec, one, media).rows for one in (file, plain))
    difference = np.linalg.norm(rows - expected) / np.linalg.norm(expected)
    assert 0 < difference <= 0.05


def test_a_wrong_size_is_named(folder: Any, tmp_path: Path) -> None:
    path, family = folder
    for key in ("embedding_length", "num_mel_bins", "attention.head_count"):
        file = GgufFile(export(tmp_path / "mmproj.gguf", path, family, **{key: 0}))
        with pytest.raises(ModelError, match=f"clip.audio.{key} is 0, but must be positive"):
            media_spec_of_mmproj(file)


def test_a_missing_tensor_is_named(folder: Any, tmp_path: Path) -> None:
    path, family = folder
    file = GgufFile(export(tmp_path / "mmproj.gguf", path, family, block_count=family.layers + 1))
    spec = media_spec_of_mmproj(file)
    media = spec.processor.audio(Sound(sound(2000), RATE))
    missing = rf"layers\.{family.layers}\..* is missing"
    with pytest.raises(ModelError, match=missing):
        encode_with(spec, file, media)
