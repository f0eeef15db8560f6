"""Pre-tokenizers of byte-level vocabularies, by their names in GGUF files.

A pre-tokenizer splits a text into words, and BPE merges never cross a word boundary. A GGUF file
contains only the pre-tokenizer's name; the patterns here are copied from the tokenizer.json files
of the named models. An unknown name is an error, because a wrong split would only make answers
slightly worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, pre_tokenizers

from penstock.base.errors import ModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_1 = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_CASED_2 = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_SLASH_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"


@dataclass(frozen=True, slots=True)
class Split:
    """Describes how text is split before BPE merges.

    - `patterns`: applied one after the other, each to the pieces of the previous pattern. Every
      match becomes a piece.
    - `gpt2_words`: GPT-2's word pattern is applied last.
    - `nfc`: the text is normalized to NFC first.
    - `ignore_merges`: a word that is a token is not split further.
    - `adds_bos`: whether a BOS token is added if the GGUF file does not specify it.
    """

    patterns: tuple[str, ...] = ()
    gpt2_words: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return the pre-tokenizer: all splits, then the mapping to GPT-2's byte alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words))
        return pre_tokenizers.Sequence(steps)


_GPT2 = Split(gpt2_words=True)
_DIGITS = Split((r"\p{N}",), gpt2_words=True)
_LLAMA3_PATTERN = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
)
_LLAMA3 = Split((_LLAMA3_PATTERN,), ignore_merges=True, adds_bos=True)
_QWEN2_PATTERN = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_MARKS}|{_SPACES}"
_SEED_CODER = Split(
    (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
    ),
)
_QWEN2 = Split((_QWEN2_PATTERN,), nfc=True)
_QWEN35 = Split(
    (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    ),
    nfc=True,
)
_TEKKEN = Split(
    (rf"{_CASED_1}|{_CASED_2}|\p{{N}}|{_SLASH_MARKS}|{_SPACES}",),
    ignore_merges=True,
    adds_bos=True,
)
_GPT4O = Split(
    (
        rf"{_CASED_1}{_CONTRACTIONS}?|{_CASED_2}{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}|{_SLASH_MARKS}|{_SPACES}",
    ),
)
_DEEPSEEK_CODER = Split(
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    adds_bos=True,
)
_CASED_LETTERS: Final = (
    "0041-005a 0061-007a 00b5 00c0-00d6 00d8-00f6 00f8-01ba 01bc-01bf 01c4-0293 0295-02af "
    "0370-0373 0376-0377 037b-037d 037f 0386 0388-038a 038c 038e-03a1 03a3-03f5 03f7-0481 "
    "048a-052f 0531-0556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b "
    "1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d "
    "1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec "
    "1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128 212a-212d "
    "212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee "
    "2cf2-2cf3 a640-a66d a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 "
    "fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 104d8-104fb 10c80-10cb2 "
    "10cc0-10cf2 118a0-118df 1e900-1e943 "
)
"""The ranges of code points of the letters in DeepSeek's first tokenizer, in hexadecimal."""


def _class_of(ranges: str) -> str:
    """Return the members of a character class."""
    ends = (part.split("-") for part in ranges.split())
    return "".join("-".join(chr(int(end, 16)) for end in part) for part in ends)


_DEEPSEEK_LLM = Split(
    (
        r"[\r\n]",
        rf"\s?[{_class_of(_CASED_LETTERS)}]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}",
    ),
    adds_bos=True,
)
_HAN = r"\p{Han}"
_KIMI_UPPER = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{_HAN}]]"
_KIMI_LOWER = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{_HAN}]]"
_KIMI_K2 = Split(
    (
        rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTIONS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}",
    ),
)
_DEEPSEEK_V3 = Split(
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    ),
    adds_bos=True,
)

SPLITS: dict[str, Split] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "modern-bert"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "command-r"), _DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "chatglm-bpe", "glm4"), Split((_LLAMA3_PATTERN,))),
    **dict.fromkeys(("qwen2", "stablelm2"), _QWEN2),
    "deepseek-r1-qwen": Split((_QWEN2_PATTERN,), adds_bos=True),
    "qwen35": _QWEN35,
    "seed-coder": _SEED_CODER,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-llm": _DEEPSEEK_LLM,
    "hunyuan": Split((_QWEN2_PATTERN,)),
    "hunyuan-dense": Split(_DEEPSEEK_V3.patterns),
    "kimi-k2": _KIMI_K2,
    "deepseek-v3": _DEEPSEEK_V3,
}


def split_named(name: str | None) -> Split:
    """Return the split with this name (`tokenizer.ggml.pre`). Raises ModelError for an unknown
    name."""
    split = SPLITS.get(name or "")
    if split is None:
        raise ModelError(
            f"tokenizer.ggml.pre is {name!r}; this build knows " + ", ".join(sorted(SPLITS))
        )
    return split
