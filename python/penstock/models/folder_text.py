"""The text parts of a Hugging Face folder: tokenizer.json and the small files beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.models.architectures import spec_of_folder
from penstock.models.hf_config import read_generation_config
from penstock.models.tokenizer_data import TextParts, TokenizerFiles
from penstock.quant.json_file import read_json

MAX_TEMPLATE_BYTES = 1 << 20


class _Token(msgspec.Struct):
    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    chat_template: str | list[_NamedTemplate] | None = None
    added_tokens_decoder: dict[str, _Token] = {}


class _TemplateFile(msgspec.Struct):
    chat_template: str


class _Ids(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


def text_parts(folder: Path, model_id: str, fingerprint: str) -> TextParts:
    """Everything that the text room needs. Raises ModelError naming the file at fault."""
    spec = spec_of_folder(folder)
    tokenizer, config_path = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not tokenizer.exists():
        raise ModelError(f"{folder}: tokenizer.json is missing")
    has_config = config_path.exists()
    config = read_json(config_path, _TokenizerConfig) if has_config else _TokenizerConfig()
    generation = read_generation_config(folder)
    return TextParts(
        model_id=model_id,
        fingerprint=fingerprint,
        tokenizer=TokenizerFiles(tokenizer, config_path if has_config else None),
        chat_template=_template(folder, config),
        bos_token=_content(config.bos_token),
        eos_token=_content(config.eos_token),
        stop_ids=_stop_ids(folder, config, generation.eos_token_id, spec.vocab),
        generation_defaults=generation.sampling(),
        context_tokens=spec.context_tokens,
        vocab_size=spec.vocab,
    )


def _content(token: str | _Token | None) -> str | None:
    return token.content if isinstance(token, _Token) else token


def _template(folder: Path, config: _TokenizerConfig) -> str | None:
    """A file of its own wins over tokenizer_config.json, as newer tools write it."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return _read_text(own)
    if (folder / "chat_template.json").exists():
        return read_json(folder / "chat_template.json", _TemplateFile).chat_template
    if isinstance(config.chat_template, list):
        named = {template.name: template.template for template in config.chat_template}
        return named.get("default")
    return config.chat_template


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ModelError(f"{path}: larger than {MAX_TEMPLATE_BYTES} bytes")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


def _stop_ids(
    folder: Path, config: _TokenizerConfig, generation_ids: int | list[int] | None, vocab: int
) -> tuple[int, ...]:
    """generation_config.json's ends, else config.json's; and the tokenizer's own end token."""
    ids = generation_ids
    if ids is None:
        ids = read_json(folder / "config.json", _Ids).eos_token_id
    stops = set(ids if isinstance(ids, list) else [] if ids is None else [ids])
    eos = _content(config.eos_token)
    for token, added in config.added_tokens_decoder.items():
        if added.content == eos and token.isascii() and token.isdigit() and len(token) < 10:
            stops.add(int(token))
    if any(not 0 <= token < vocab for token in stops):
        raise ModelError(f"{folder}: eos_token_id {sorted(stops)} is not in the vocabulary")
    return tuple(sorted(stops))
