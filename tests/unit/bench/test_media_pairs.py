"""The models that the media benchmarks write are models that Penstock reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer

from bench.media.peers.gguf_pair import write_pair
from bench.media.peers.metadata_folder import write_metadata
from bench.media.peers.shapes import SHAPES, Shape
from penstock.models.families.registry import media_spec_of_folder, media_spec_of_mmproj
from penstock.quant.gguf.gguf_file import GgufFile

LETTERS = [chr(letter) for letter in range(33, 127)]


def source(path: Path) -> Path:
    """Write a GGUF file with a tokenizer of single letters."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_pre("smollm")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "ab"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a b"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def small(shape: Shape) -> Shape:
    text = replace(shape.text, layers=3, width=256, inner=256, heads=4, kv_heads=2, head_dim=64,
                   vocabulary=256)  # fmt: skip
    deep = (0, 2) if shape.tower.deep else ()
    tower = replace(shape.tower, layers=3, width=64, inner=64, heads=2, deep=deep)
    return replace(shape, text=text, tower=tower)


@pytest.mark.parametrize("kinds", [("q8_0", "f16"), ("q4_k", "bf16")])
@pytest.mark.parametrize("name", SHAPES)
def test_towers_of_written_pairs_open(name: str, kinds: tuple[str, str], tmp_path: Path) -> None:
    shape = small(SHAPES[name])
    _, mmproj = write_pair(tmp_path, shape, source(tmp_path / "t.gguf"), *kinds, 0)
    file = GgufFile(mmproj)
    (tower,) = media_spec_of_mmproj(file).towers
    tower.open(file, "auto")
    assert tower.kinds >= {"image"}


@pytest.mark.parametrize("name", SHAPES)
def test_text_models_have_the_shape_and_the_control_tokens(name: str, tmp_path: Path) -> None:
    shape = small(SHAPES[name])
    model, _ = write_pair(tmp_path, shape, source(tmp_path / "t.gguf"), "q8_0", "f16", 3)
    file = GgufFile(model)
    assert file.tensors["token_embd.weight"].shape == (256, 256)
    assert {f"blk.{layer}.attn_q.weight" for layer in range(3)} < set(file.tensors)
    tokens = gguf.GGUFReader(model).fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == 256
    assert set(shape.tokens) < set(tokens)


@pytest.mark.parametrize("name", SHAPES)
def test_metadata_folders_describe_the_pair(name: str, tmp_path: Path) -> None:
    shape = small(SHAPES[name])
    model, mmproj = write_pair(tmp_path, shape, source(tmp_path / "t.gguf"), "q8_0", "f16", 3)
    folder = write_metadata(tmp_path / "metadata", shape, model)
    spec, other = media_spec_of_folder(folder), media_spec_of_mmproj(GgufFile(mmproj))
    assert spec is not None
    assert spec.processor.placeholders == other.processor.placeholders
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = gguf.GGUFReader(model).fields["tokenizer.ggml.tokens"].contents()
    encoded = tokenizer.encode(f"{shape.tokens[0]}ab").ids
    assert encoded == [tokens.index(shape.tokens[0]), tokens.index("ab")]
