"""Small random models of transformers in folders, with tokenizers that are trained here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from test_gguf_models import small_model
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from penstock.models.hub.model_files import ModelFiles
from penstock.text.tokenizers.pretokenizers import SPLITS

SIZES = {
    **{"hidden_size": 128, "intermediate_size": 256, "vocab_size": 320},
    **{"bos_token_id": 0, "eos_token_id": 1},
}
CORPUS = ["the year 2024 and 1999, 2024 12345", "don't won't it's", "  a  b\n\n c = x**2"] * 50


def write_byte_level(folder: Path, split: str = "gpt-2", digits: bool = False) -> None:
    """Write a byte-level BPE tokenizer with the pre-tokenizer `split`: "gpt-2" or "qwen2"."""
    tokenizer = Tokenizer(models.BPE())
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if split != "gpt-2":
        steps.append(pre_tokenizers.Split(Regex(SPLITS[split].patterns[0]), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split == "gpt-2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<s>", "<end>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    extra = {"bos_token": "<s>", "eos_token": "<end>", "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))


def write_folder(
    folder: Path, name: str = "Llama", digits: bool = False, **options: Any
) -> tuple[ModelFiles, Any]:
    """Write a random model with a trained byte-level tokenizer. Return it too."""
    model = small_model(name, **(SIZES | options))
    model.save_pretrained(folder)
    write_byte_level(folder, "qwen2" if name.startswith("Qwen") else "gpt-2", digits)
    return ModelFiles("tiny", "folder", folder), model


def write_sentencepiece(folder: Path, prefix: bool = True) -> None:
    """Write a tokenizer as it is converted from SentencePiece: BPE in the order of scores, with
    every split of a token as a merge, and bytes for other characters. `prefix`: a space is
    prepended to text."""
    words = " ".join(CORPUS[:3]).replace(" ", "\u2581").split("\u2581")
    pieces = Counter(
        word[first:last]
        for word in (f"\u2581{word}" for word in words)
        for first in range(len(word))
        for last in range(first + 2, len(word) + 1)
    )
    letters = sorted(set("".join(pieces)))
    ranked = [piece for piece, _ in pieces.most_common(80)]
    tokens = ["<unk>", "<s>", "<end>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: number for number, token in enumerate([*tokens, *ranked, *letters])}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in vocab and piece[cut:] in vocab
    ]
    model = models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", "\u2581")
    before = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, spaces])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "<end>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    extra = {"bos_token": "<s>", "eos_token": "<end>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(extra))
