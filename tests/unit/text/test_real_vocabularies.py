"""Token ids equal transformers' for real vocabularies, over a few thousand lines of varied text.

A GGUF file only names its pre-tokenizer. If the loader of transformers does not know the name
("smollm": digits apart; "qwen2": NFC first), the expected tokenizer is given the parts of the
model's tokenizer.json.
"""

from __future__ import annotations

import json
import random
import textwrap
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers, pre_tokenizers

from penstock.base.errors import ModelError
from penstock.config import read_environment
from penstock.dialog import Message, Text
from penstock.models.hub.catalogue import DEFAULT_MODEL
from penstock.models.hub.sources import files_at, resolve_model
from penstock.models.loader.model_loader import load_text_parts
from penstock.text import ChatTemplate, IncrementalDetokenizer, load_tokenizer
from penstock.text.tokenizers.tokenizer import Tokenizer

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz",
    "ABCXYZ",
    "0123456789",
    " ",
    "  \t\n\r\n\u00a0\u2003\u3000",
    "'\"-_.,;:!?()[]{}<>/\\|@#$%^&*+=~`",
    "àéîõüßñçøÅŁž",
    "\u0301\u0308\u0327\u20dd",
    "абвгдеёжзик",
    "αβγδεζηθ",
    "你好世界漢字中文",
    "ひらがなカタカナ",
    "한국어조선말ᄒ",
    "नमस्तेदुनिया",
    "مرحباالعالم",
    "שלום",
    "😀😁👍🏽👩‍👩‍👧‍👦🇩🇪❤️",
    "½²³Ⅷ①٣४",
    "\u200b\u200d\ufeff\u202e\ufffd",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢𐍈",
]
WORDS = "the a quick brown fox don't I'LL we've it's x=1; for(i=0;i<10;i++) def f(): return None"


def lines(count: int) -> list[str]:
    rng = random.Random(7)
    made = [
        *Path(json.__file__).read_text().splitlines(),
        *Path(textwrap.__file__).read_text().split("\n\n"),
    ]
    made += [" " * n + "x" for n in range(1, 200, 7)] + ["\n" * n for n in range(1, 40, 3)]
    while len(made) < count:
        pieces = []
        for _ in range(rng.randint(1, 12)):
            if rng.random() < 0.4:
                pieces.append(rng.choice(WORDS.split()) + rng.choice([" ", "", "  "]))
            else:
                alphabet = rng.choice(ALPHABETS)
                pieces.append("".join(rng.choices(alphabet, k=rng.randint(1, 8))))
        made.append("".join(pieces))
    return made


LINES = lines(3000)


def oracle_of(path: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def assert_same_ids(tokenizer: Tokenizer, oracle: Any) -> None:
    expected = oracle(LINES, add_special_tokens=False)["input_ids"]
    for line, ids in zip(LINES, expected, strict=True):
        assert tokenizer.encode(line) == ids, repr(line)


def assert_text_comes_back(tokenizer: Tokenizer, normalize: Any = str) -> None:
    for line in LINES:
        detokenizer = IncrementalDetokenizer(tokenizer)
        ids = tokenizer.encode(line)
        text = "".join(map(detokenizer.push, ids)) + detokenizer.finish()
        assert text == tokenizer.decode(ids) == normalize(line)


@pytest.fixture(scope="module")
def default_model() -> Path:
    try:
        return resolve_model(DEFAULT_MODEL, read_environment().home).path
    except ModelError as error:
        pytest.skip(f"the default model cannot be fetched: {error}")


@pytest.fixture(scope="module")
def default_oracle(default_model: Path) -> Any:
    oracle = oracle_of(default_model)
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return oracle


@pytest.mark.slow
def test_default_model_ids_equal_transformers(default_model: Path, default_oracle: Any) -> None:
    tokenizer = load_tokenizer(load_text_parts(files_at(default_model, "m")))
    assert_same_ids(tokenizer, default_oracle)
    assert_text_comes_back(tokenizer)


@pytest.mark.slow
def test_default_model_chat_equals_transformers(default_model: Path, default_oracle: Any) -> None:
    parts = load_text_parts(files_at(default_model, "m"))
    assert parts.chat_template is not None
    tokenizer = load_tokenizer(parts)
    template = ChatTemplate(
        parts.chat_template, bos_token=parts.bos_token, eos_token=parts.eos_token
    )
    roles = ("system", "user", "assistant", "user")
    for start, end in ((0, 2), (1, 2), (1, 4), (0, 4)):
        talk = [(role, f"  Hé,\n{role}! 😀 ") for role in roles[start:end]]
        expected = default_oracle.apply_chat_template(
            [{"role": role, "content": text} for role, text in talk],
            add_generation_prompt=True,
            return_dict=False,
        )
        messages = [Message(role, (Text(text),)) for role, text in talk]  # type: ignore[arg-type]
        assert template.encode(tokenizer, messages).token_ids == expected


@pytest.mark.slow
@pytest.mark.weights
def test_qwen_ids_equal_transformers(weights_dir: Path) -> None:
    path = next(iter(weights_dir.glob("qwen05b/*.gguf")), None)
    if path is None:
        pytest.skip("needs qwen05b/*.gguf in --weights-dir")
    oracle = oracle_of(path)
    oracle.backend_tokenizer.normalizer = normalizers.NFC()
    tokenizer = load_tokenizer(load_text_parts(files_at(path, "m")))
    assert_same_ids(tokenizer, oracle)
    assert_text_comes_back(tokenizer, lambda line: unicodedata.normalize("NFC", line))
