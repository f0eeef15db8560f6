"""Reads the text parts of a GGUF file from its metadata `tokenizer.*`."""

from __future__ import annotations

import logging
from typing import Any, Final

import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.configuration.generation_config import gguf_sampling_defaults
from penstock.models.families.registry import spec_of_gguf
from penstock.models.tokenizer.special_tokens import HARMONY_END_OF_TURN
from penstock.models.tokenizer.tokenizer_data import TextParts, TokenizerData, TokenType
from penstock.quant.gguf.gguf_file import GgufFile

log = logging.getLogger(__name__)

# Names in the keys tokenizer.ggml.<name>_token_id of control tokens, which are never text.
STEERING: Final = ("bos", "eos", "eot", "eom")
GPT2: Final = "gpt-2"
UNNAMED: Final = ("", "default")  # names that mean "no pre-tokenizer given"
# Control tokens that end a turn in the chat templates of known families. GGUF metadata name one
# end-of-text token; chat models often end an answer with another token.
END_OF_TURN = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
    }
)
HARMONY_END_OF_MESSAGE = "<|end|>"  # in gpt-oss it ends one of several messages, not the turn


def text_parts(file: GgufFile, model_id: str, fingerprint: str) -> TextParts:
    """Return the text parts of a GGUF file: tokenizer, chat templates, stop ids and limits. Raises
    ModelError naming the key at fault."""
    spec, _ = spec_of_gguf(file)
    data = tokenizer_data(file)
    if len(data.tokens) > spec.vocab_size:
        raise ModelError(
            f"{file.path}: tokenizer.ggml.tokens has {len(data.tokens)} entries, but the embedding"
            f" has {spec.vocab_size} rows"
        )
    return TextParts(
        model_id=model_id,
        fingerprint=fingerprint,
        tokenizer=data,
        chat_template=file.text("tokenizer.chat_template", "") or None,
        bos_token=None if data.bos_id is None else data.tokens[data.bos_id],
        eos_token=None if data.eos_id is None else data.tokens[data.eos_id],
        stop_ids=_stop_ids(file, data),
        generation_defaults=gguf_sampling_defaults(file),
        max_model_len=spec.max_model_len,
        vocab_size=spec.vocab_size,
        tool_template=file.text("tokenizer.chat_template.tool_use", "") or None,
    )


def tokenizer_data(file: GgufFile) -> TokenizerData:
    """Return the tokenizer that the metadata describe. Raises ModelError naming the key at
    fault."""
    tokens = file.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens is missing")
    return TokenizerData(
        model=file.text("tokenizer.ggml.model"),
        pre=_pre(file),
        tokens=tokens,
        token_types=_token_types(file, tokens),
        scores=_parallel(file, "tokenizer.ggml.scores", len(tokens)).tolist(),
        merges=file.strings("tokenizer.ggml.merges"),
        bos_id=_token_id(file, "bos", len(tokens)),
        eos_id=_token_id(file, "eos", len(tokens)),
        unknown_id=_token_id(file, "unknown", len(tokens)),
        cls_id=_token_id(file, "cls", len(tokens)),
        sep_id=_token_id(file, "seperator", len(tokens)),  # the spelling of the format
        add_bos=file.boolean("tokenizer.ggml.add_bos_token"),
        add_eos=file.boolean("tokenizer.ggml.add_eos_token"),
        add_space_prefix=file.boolean("tokenizer.ggml.add_space_prefix"),
        where=str(file.path),
    )


def _pre(file: GgufFile) -> str | None:
    """Return the pre-tokenizer's name. A byte-level vocabulary without a name gets GPT-2's
    pre-tokenizer, as in llama.cpp: older converters wrote no name, or "default"."""
    key = "tokenizer.ggml.pre"
    name = file.text(key, "")
    if name not in UNNAMED or file.text("tokenizer.ggml.model") != "gpt2":
        return name or None
    found = f"{key} is {name!r}" if name else f"{key} is missing"
    log.warning(
        "%s: %s; using GPT-2's pre-tokenizer, which may make answers worse: newer files of this"
        " model name their own",
        *(file.path, found),
    )
    return GPT2


def _token_types(file: GgufFile, tokens: list[str]) -> list[int]:
    """Return the type of each token. The begin and end tokens that the metadata name become control
    tokens, because the tokenizer would otherwise split them in a rendered chat template. A token of
    a single character keeps its type, because it occurs in ordinary text."""
    key = "tokenizer.ggml.token_type"
    types: list[int] = _parallel(file, key, len(tokens)).tolist()
    types = types or [int(TokenType.NORMAL)] * len(tokens)
    for name in STEERING:
        token = _token_id(file, name, len(tokens))
        if token is None or types[token] == TokenType.CONTROL or len(tokens[token]) < 2:
            continue
        log.warning(
            "%s: %s is %s for %r, which is the %s token; it is treated as a control token",
            *(file.path, key, _type_name(types[token]), tokens[token], name),
        )
        types[token] = int(TokenType.CONTROL)
    return types


def _type_name(number: int) -> str:
    return TokenType(number).name if number in TokenType.__members__.values() else str(number)


def _parallel(file: GgufFile, key: str, length: int) -> npt.NDArray[Any]:
    """Return an array of numbers with one entry per token, or an empty array if the key is absent.
    Raises ModelError for another length."""
    values = file.numbers(key)
    if len(values) not in (0, length):
        raise ModelError(f"{file.path}: {key} has {len(values)} entries for {length} tokens")
    return values


def _token_id(file: GgufFile, name: str, length: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    if key not in file.metadata:
        return None
    token = file.integer(key)
    if not 0 <= token < length:
        raise ModelError(f"{file.path}: {key} {token} is not in the vocabulary of {length}")
    return token


def _stop_ids(file: GgufFile, data: TokenizerData) -> tuple[int, ...]:
    named = [_token_id(file, name, len(data.tokens)) for name in STEERING if name != "bos"]
    control = {
        text: token
        for token, (text, kind) in enumerate(zip(data.tokens, data.token_types, strict=False))
        if kind == TokenType.CONTROL
    }
    harmony = control.keys() >= HARMONY_END_OF_TURN
    ends = END_OF_TURN | HARMONY_END_OF_TURN if harmony else END_OF_TURN
    stops = {token for token in named if token is not None}
    stops |= {token for text, token in control.items() if text in ends}
    if harmony:
        stops.discard(control.get(HARMONY_END_OF_MESSAGE, -1))
    return tuple(sorted(stops))
