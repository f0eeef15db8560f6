"""A vocabulary of a few hundred tokens for tests: every byte, some words, and control tokens of a
chat. The first 256 token ids are byte values, so that tests can spell the output of a scripted
engine."""

from __future__ import annotations

from penstock.models.tokenizer.tokenizer_data import TokenizerData, TokenType
from penstock.text import ChatTemplate, Tokenizer
from penstock.text.tokenizers.tokenizer import from_gguf

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END_OF_TEXT, IM_START, IM_END = 256, 257, 258
WORDS = ["th", "the", "he", "in", "ing"]
MERGES = ["t h", "th e", "h e", "i n", "in g"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_letters() -> list[str]:
    """Return the letter of GPT-2's byte alphabet for each byte value, from its definition."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, others = [], 0
    for byte in range(256):
        letters.append(chr(byte) if byte in shown else chr(256 + others))
        others += byte not in shown
    return letters


def tiny_data(**changes: object) -> TokenizerData:
    """Return the GGUF metadata of the tiny vocabulary. Keyword arguments replace fields."""
    tokens = byte_letters() + CONTROL + WORDS
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * len(WORDS)
    fields: dict[str, object] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_types": [int(t) for t in types],
        "scores": [],
        "merges": MERGES,
        "bos_id": END_OF_TEXT,
        "eos_id": IM_END,
    }
    fields.update(changes)
    return TokenizerData(**fields)  # type: ignore[arg-type]


def tiny_tokenizer(**changes: object) -> Tokenizer:
    return from_gguf(tiny_data(**changes))


def tiny_template() -> ChatTemplate:
    return ChatTemplate(CHATML)
