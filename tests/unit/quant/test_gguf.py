"""The GGUF reader returns the contents of valid files, and raises ModelError for invalid ones."""

from __future__ import annotations

import contextlib
import resource
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.base.errors import ModelError
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.ggml_types import TYPES
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.gguf.gguf_header import StringArray
from penstock.quant.weight_slices import size_bytes

REUSE_PATH = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read_all(path: Path) -> None:
    """Read everything that loading a model reads."""
    file = GgufFile(path)
    for value in file.metadata.values():
        if isinstance(value, StringArray):
            value.decode()
    for name, info in file.tensors.items():
        if len(info.shape) == 1:
            file.vector(name)
        else:
            file.matrix(name)


def test_metadata_and_tensors_are_read(gguf_path: Path) -> None:
    file = GgufFile(gguf_path)
    assert file.integer("general.alignment") == 32
    assert file.text("general.architecture") == "llama"
    assert file.strings("tokens") == ["a", "", "\u0120x"]
    assert file.tensors["m"].shape == (2, 32)
    np.testing.assert_array_equal(dequantize(file.matrix("m")), np.arange(64.0).reshape(2, 32))
    np.testing.assert_array_equal(file.vector("v"), np.arange(8.0))


def test_a_file_of_the_reference_writer_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_uint32("a.u32", 7)
    writer.add_float32("a.f32", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_array("a.tokens", ["x", "y\u00e9"])
    writer.add_array("a.numbers", [1, 2, 3])
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q5_1)
    writer.add_tensor("w", packed, raw_dtype=gguf.GGMLQuantizationType.Q5_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    assert file.integer("a.u32") == 7
    assert file.real("a.f32") == 0.5
    assert file.boolean("a.bool") is True
    assert file.strings("a.tokens") == ["x", "y\u00e9"]
    assert file.numbers("a.numbers").tolist() == [1, 2, 3]
    expected = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q5_1)
    np.testing.assert_array_equal(dequantize(file.matrix("w")), expected)


def write_set(folder: Path, tensors: int, in_a_file: int) -> tuple[Path, list[np.ndarray]]:
    """Write a set as gguf-split does: the first file may have no tensors."""
    writer = gguf.GGUFWriter(str(folder / "m.gguf"), "llama", split_max_tensors=in_a_file)
    writer.add_uint32("a.u32", 7)
    random = np.random.default_rng(0)
    values = [random.normal(size=(4, 64)).astype(np.float32) for _ in range(tensors)]
    for number, value in enumerate(values):
        writer.add_tensor(f"w{number}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(folder.glob("*.gguf")), values


def test_a_split_set_is_one_file(tmp_path: Path) -> None:
    path, values = write_set(tmp_path, tensors=5, in_a_file=2)
    assert path.name == "m-00001-of-00003.gguf"
    file = GgufFile(path)
    assert file.integer("a.u32") == 7
    assert list(file.tensors) == [f"w{number}" for number in range(5)]
    for name, value in zip(file.tensors, values, strict=True):
        np.testing.assert_array_equal(dequantize(file.matrix(name)), value)


def test_a_later_file_of_a_set_is_refused(tmp_path: Path) -> None:
    path, _ = write_set(tmp_path, tensors=3, in_a_file=1)
    with pytest.raises(ModelError, match=r"00002-of-00003\.gguf: .*name the first, .*-00001-of-0"):
        GgufFile(tmp_path / "m-00002-of-00003.gguf")
    path.rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelError, match=r"renamed\.gguf: .*name the first, .*-00001-of-00003"):
        GgufFile(tmp_path / "renamed.gguf")


@pytest.mark.parametrize("wrong", ["missing", "another's", "of another set", "twice", "too few"])
def test_a_wrong_file_of_a_set_is_named(tmp_path: Path, wrong: str) -> None:
    path, _ = write_set(tmp_path, tensors=3, in_a_file=1)
    second, third = (tmp_path / f"m-0000{number}-of-00003.gguf" for number in (2, 3))
    if wrong == "missing":
        third.unlink()
        message = "00003-of-00003.gguf: cannot be read"
    elif wrong == "another's":
        third.write_bytes(second.read_bytes())
        message = "00003-of-00003.gguf: split.no: not file 3 of a set of 3"
    elif wrong == "of another set":
        (tmp_path / "other").mkdir()
        write_set(tmp_path / "other", tensors=4, in_a_file=1)
        third.write_bytes((tmp_path / "other" / "m-00003-of-00004.gguf").read_bytes())
        message = "00003-of-00003.gguf: split.no: not file 3 of a set of 3"
    elif wrong == "twice":
        third.write_bytes(third.read_bytes().replace(b"w2", b"w1"))
        message = "00003-of-00003.gguf: w1: is also in another file"
    else:
        data = path.read_bytes()
        key = b"split.tensors.count"
        at = data.index(key) + len(key) + 4
        path.write_bytes(data[:at] + struct.pack("<i", 4) + data[at + 4 :])
        message = "split.tensors.count: 4, but there are 3"
    with pytest.raises(ModelError, match=message):
        GgufFile(path)


@given(text=st.lists(st.text(), max_size=8))
@REUSE_PATH
def test_any_strings_read_back(tmp_path: Path, text: list[str]) -> None:
    encoded = [string.encode("utf-8", "replace") for string in text]
    path = tmp_path / "strings.gguf"
    path.write_bytes(
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 1)
        + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, len(encoded))
        + b"".join(struct.pack("<Q", len(data)) + data for data in encoded)
        + bytes(32)
    )
    assert GgufFile(path).strings("k") == [data.decode() for data in encoded]


def test_every_truncation_is_a_model_error(tmp_path: Path, gguf_bytes: bytes) -> None:
    path = tmp_path / "cut.gguf"
    for length in range(len(gguf_bytes)):
        path.write_bytes(gguf_bytes[:length])
        with pytest.raises(ModelError):
            read_all(path)


@given(data=st.data())
@REUSE_PATH
def test_corrupt_bytes_give_a_model_error_or_another_model(
    tmp_path: Path, gguf_bytes: bytes, data: st.DataObject
) -> None:
    spoiled = bytearray(gguf_bytes)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[position] = data.draw(st.sampled_from([0, 1, 8, 9, 0x7F, 0x80, 0xFF]))
    path = tmp_path / "spoiled.gguf"
    path.write_bytes(spoiled)
    try:
        read_all(path)
    except ModelError as error:
        assert str(path) in str(error)


@given(
    position=st.integers(4, 320),
    number=st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**40, 2**32, 2**31]),
)
@REUSE_PATH
def test_absurd_numbers_allocate_nothing(
    tmp_path: Path, gguf_bytes: bytes, position: int, number: int
) -> None:
    spoiled = bytearray(gguf_bytes)
    spoiled[position : position + 8] = struct.pack("<Q", number)
    path = tmp_path / "absurd.gguf"
    path.write_bytes(spoiled)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(ModelError):
        read_all(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def header(*, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cannot be read"),
        (b"GGML" + bytes(60), "not a GGUF file"),
        (header(version=1) + bytes(60), "version"),
        (header(version=3 << 24) + bytes(60), "big-endian"),
        (header(tensors=1 << 40) + bytes(60), "tensor count"),
        (header(keys=1 << 40) + bytes(60), "key count"),
        (header(keys=1) + struct.pack("<Q", 1 << 50) + bytes(60), "key 0"),
        (header(keys=1) + struct.pack("<Q1sI", 1, b"k", 99) + bytes(60), "k: unknown value type"),
        (
            header(keys=1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1) + bytes(60),
            "k: an array of arrays",
        ),
        (
            header(keys=1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 61) + bytes(60),
            "k: .* values reach past",
        ),
        (
            header(keys=1) + struct.pack("<Q1sIIQQ", 1, b"k", 9, 8, 2, 2**64 - 9) + bytes(60),
            "k: its strings reach past",
        ),
        (
            header(keys=2) + 2 * struct.pack("<Q1sIB", 1, b"k", 0, 1) + bytes(60),
            "k: appears twice",
        ),
        (header(tensors=1) + struct.pack("<Q1sI", 1, b"t", 5) + bytes(60), "t: 5 dimensions"),
        (
            header(tensors=1) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 1 << 62, 0, 0) + bytes(60),
            "t: its data reach past",
        ),
        (
            header(tensors=1) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 31, 8, 0) + bytes(60),
            "t: rows of 31",
        ),
        (
            header(tensors=1) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 0, 0, 0) + bytes(60),
            "t: empty shape",
        ),
        (
            header(tensors=1) + struct.pack("<Q1sIQIQ", 1, b"t", 1, 1, 0, 4) + bytes(60),
            "t: offset 4",
        ),
        (
            header(tensors=2)
            + struct.pack("<Q1sIQIQ", 1, b"t", 1, 16, 0, 0)
            + struct.pack("<Q1sIQIQ", 1, b"u", 1, 16, 0, 32)
            + bytes(300),
            "u: its data overlap those of t",
        ),
    ],
)
def test_impossible_headers_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        GgufFile(path)


def test_an_unsupported_type_is_refused_with_tensor_and_type(tmp_path: Path) -> None:
    path = tmp_path / "removed.gguf"
    tensor = struct.pack("<Q1sIQQIQ", 1, b"t", 2, 256, 1, 36, 0)
    path.write_bytes(header(tensors=1) + tensor + bytes(200))
    with pytest.raises(ModelError, match="tensor t has type IQ4_NL_4_4"):
        GgufFile(path).matrix("t")


@pytest.mark.parametrize("key", ["general.architecture", "tokens", "nothing"])
def test_a_key_of_another_type_is_a_model_error_naming_it(gguf_path: Path, key: str) -> None:
    with pytest.raises(ModelError, match=key):
        GgufFile(gguf_path).integer(key)


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["qwen05b/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
)
def test_real_files_read_as_the_gguf_package_reads_them(weights_dir: Path, name: str) -> None:
    ours, theirs = GgufFile(weights_dir / name), gguf.GGUFReader(weights_dir / name)
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors[:20]:
        rows = np.asarray(tensor.data)[:64] if len(tensor.shape) == 2 else np.asarray(tensor.data)
        expected = gguf.quants.dequantize(rows, tensor.tensor_type)
        if len(tensor.shape) == 2:
            values = dequantize(ours.matrix(tensor.name))[: len(expected)]
        else:
            values = ours.vector(tensor.name)
        np.testing.assert_array_equal(values, expected)


def written(path: Path, tensors: dict[str, tuple[np.ndarray, str]]) -> Path:
    """Write a file of tensors: name -> raw bytes [..., row bytes], type."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(*shape: int) -> np.ndarray:
    """Return random bytes that are finite numbers in every float type."""
    return np.random.default_rng(0).integers(0, 0x78, shape, np.uint8)


def test_a_matrix_of_nvfp4_is_multiplied_by_its_factor(tmp_path: Path) -> None:
    raw = random_blocks(2, 3, 72)
    factors = np.array([0.75, -3.0], np.float32)
    tensors = {
        "a.weight": (raw[0], "NVFP4"),
        "a.scale": (factors[:1], "F32"),
        "a.input_scale": (factors[:1], "F32"),
        "e.weight": (raw, "NVFP4"),
        "e.scale": (factors, "F32"),
    }
    file = GgufFile(written(tmp_path / "m.gguf", tensors))
    assert set(file.tensors) == {"a.weight", "e.weight"}
    plain = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.NVFP4)
    np.testing.assert_array_equal(dequantize(file.matrix("a.weight")), plain[0] * factors[0])
    for one, values, factor in zip(file.stack("e.weight"), plain, factors, strict=True):
        np.testing.assert_array_equal(dequantize(one), values * factor)
    assert size_bytes(file.matrix("a.weight")) == 3 * 128 // 64 * size_bytes(
        file.layout_sample("a.weight")
    )


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_a_factor_that_is_not_finite_is_named(tmp_path: Path, factor: float) -> None:
    tensors = {
        "a.weight": (random_blocks(3, 36), "NVFP4"),
        "a.scale": (np.array([factor], np.float32), "F32"),
    }
    file = GgufFile(written(tmp_path / "m.gguf", tensors))
    with pytest.raises(ModelError, match=r"a\.scale: not all numbers are finite"):
        file.matrix("a.weight")


def test_a_scale_that_is_not_finite_is_refused_with_the_tensor(tmp_path: Path) -> None:
    raw = random_blocks(3, 66)
    raw[1, :2] = np.array([np.inf], "<f2").view(np.uint8)
    file = GgufFile(written(tmp_path / "m.gguf", {"a.weight": (raw, "IQ2_XXS")}))
    with pytest.raises(ModelError, match=r"a\.weight: a scale is infinite or NaN"):
        file.matrix("a.weight")


def test_types_that_no_kernel_reads_at_their_size_are_counted_and_named(tmp_path: Path) -> None:
    tensors = {
        "a.weight": (random_blocks(8, 66), "IQ2_XXS"),
        "b.weight": (random_blocks(8, 144), "Q4_K"),
        "c.weight": (random_blocks(8, 210), "Q6_K"),
        "d.bias": (random_blocks(64), "F32"),
    }
    file = GgufFile(written(tmp_path / "m.gguf", tensors))
    # 5 bits instead of 66 bytes per 256 weights, and 4.625 instead of 4.5
    assert file.extra_bytes == 8 * (5 * 32 - 66) + 8 * 256 // 64
    named = "; no kernel reads these types at their size: IQ2_XXS takes"
    assert file.size_note("cpu") == f"{named} 5 bits per weight instead of 2.06"
    on_a_gpu = f"{named} 9 bits per weight instead of 2.06, Q4_K takes 6 bits "
    assert file.size_note("gpu").startswith(on_a_gpu)


@pytest.mark.parametrize("kind", list(TYPES))
def test_blocks_that_are_cut_short_are_refused(tmp_path: Path, kind: str) -> None:
    size = TYPES[kind]
    path = written(tmp_path / "m.gguf", {"a.weight": (random_blocks(2, 8 * size.size_bytes), kind)})
    whole = path.read_bytes()
    end = whole.rindex(random_blocks(2, 8 * size.size_bytes).tobytes()[-8:]) + 8
    for left in (end - 1, end - size.size_bytes, end - 9 * size.size_bytes):
        path.write_bytes(whole[:left])
        with pytest.raises(ModelError, match=r"m\.gguf"):
            GgufFile(path)


@pytest.mark.parametrize("kind", list(TYPES))
def test_random_blocks_are_read_or_refused_with_the_tensor(tmp_path: Path, kind: str) -> None:
    size = TYPES[kind]
    rng = np.random.default_rng(1)
    for _ in range(8):
        raw = rng.integers(0, 256, (3, 2 * size.size_bytes), np.uint8)
        file = GgufFile(written(tmp_path / "m.gguf", {"a.weight": (raw, kind)}))
        try:
            assert file.matrix("a.weight").shape == (3, 2 * size.block)
        except ModelError as error:
            assert "a.weight" in str(error)
