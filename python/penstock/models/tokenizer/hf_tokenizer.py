"""Reads the text parts of a Hugging Face folder: tokenizer.json and the small files that accompany
it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.generation_config import read_generation_config
from penstock.models.configuration.text_backbone import text_backbone_config
from penstock.models.families.registry import is_known_folder, spec_of_folder
from penstock.models.hub.folder_files import TOOL_TEMPLATE
from penstock.models.tokenizer.special_tokens import (
    HARMONY_END_OF_TURN,
    SpecialTokens,
    read_special_tokens,
)
from penstock.models.tokenizer.tokenizer_data import TextParts, TokenizerFiles
from penstock.quant.json_file import read_json

MAX_TEMPLATE_BYTES = 1 << 20


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    chat_template: str | list[_NamedTemplate] | None = None


class _TemplateFile(msgspec.Struct):
    chat_template: str


class _Ids(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class _Sizes(msgspec.Struct):
    vocab_size: int
    max_position_embeddings: int | None = None
    n_positions: int | None = None

    @property
    def max_model_len(self) -> int:
        return self.max_position_embeddings or self.n_positions or 0


def _foreign_sizes(folder: Path) -> _Sizes:
    """Return the sizes of a model without a family, which the modules of transformers may run.
    Raises the error of the registry if config.json lacks them."""
    try:
        sizes = read_json(folder / "config.json", _Sizes)
        if sizes.max_model_len > 0:
            return sizes
    except ModelError:
        pass
    spec_of_folder(folder)
    raise ModelError(f"{folder / 'config.json'}: vocab_size or max_position_embeddings is missing")


def text_parts(folder: Path, model_id: str, fingerprint: str) -> TextParts:
    """Return the text parts of a folder: tokenizer, chat templates, stop ids and limits. Raises
    ModelError naming the file at fault."""
    spec = spec_of_folder(folder) if is_known_folder(folder) else _foreign_sizes(folder)
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        raise ModelError(f"{folder}: tokenizer.json is missing")
    tokens = read_special_tokens(folder)
    templates = _templates(folder)
    generation = read_generation_config(folder)
    return TextParts(
        model_id=model_id,
        fingerprint=fingerprint,
        tokenizer=TokenizerFiles(tokenizer, spec.vocab_size, tokens.declared),
        chat_template=templates.get("default"),
        tool_template=templates.get("tool_use"),
        bos_token=tokens.bos,
        eos_token=tokens.eos,
        stop_ids=_stop_ids(folder, tokens, generation.eos_token_id, spec.vocab_size),
        generation_defaults=generation.sampling(),
        max_model_len=spec.max_model_len,
        vocab_size=spec.vocab_size,
    )


def _config_ids(path: Path) -> int | list[int] | None:
    try:
        config = text_backbone_config(read_json(path, dict[str, Any]))
        return msgspec.convert(config, _Ids).eos_token_id
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from None


def _templates(folder: Path) -> dict[str, str]:
    """Return the chat templates by name; a single template is named "default". Separate template
    files, which newer tools write, override tokenizer_config.json."""
    own = folder / "chat_template.jinja"
    if own.exists():
        found = {"default": _read_text(own)}
        for_tools = folder / TOOL_TEMPLATE
        return found | ({"tool_use": _read_text(for_tools)} if for_tools.exists() else {})
    if (folder / "chat_template.json").exists():
        return {"default": read_json(folder / "chat_template.json", _TemplateFile).chat_template}
    path = folder / "tokenizer_config.json"
    given = read_json(path, _TokenizerConfig).chat_template if path.exists() else None
    if isinstance(given, list):
        return {template.name: template.template for template in given}
    return {} if given is None else {"default": given}


def _read_text(path: Path) -> str:
    if path.stat().st_size > MAX_TEMPLATE_BYTES:
        raise ModelError(f"{path}: larger than {MAX_TEMPLATE_BYTES} bytes")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from None


def _stop_ids(
    folder: Path, tokens: SpecialTokens, generation_ids: int | list[int] | None, vocab: int
) -> tuple[int, ...]:
    """Return the ids of the tokens that end an answer: those of generation_config.json, or else of
    config.json, and the tokenizer's end token. Raises ModelError for an id outside the
    vocabulary."""
    ids = generation_ids
    if ids is None:
        ids = _config_ids(folder / "config.json")
    stops = set(ids if isinstance(ids, list) else [] if ids is None else [ids])
    stops.update(
        token.id
        for token in tokens.declared
        if token.id is not None and token.content == tokens.eos
    )
    ids_of = {token.content: token.id for token in tokens.declared if token.id is not None}
    if ids_of.keys() >= HARMONY_END_OF_TURN:  # a config may name only the end of an answer
        stops.update(ids_of[content] for content in HARMONY_END_OF_TURN)
    if any(not 0 <= token < vocab for token in stops):
        raise ModelError(f"{folder}: eos_token_id {sorted(stops)} is not in the vocabulary")
    return tuple(sorted(stops))
