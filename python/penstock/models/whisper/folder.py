"""Reads the configuration of a Whisper model from its Hugging Face folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.towers.audio_spec import AudioLayersSpec, WhisperEncoderSpec
from penstock.models.whisper.spec import ENGLISH_ONLY_VOCAB, WhisperSpec, WhisperTokens
from penstock.quant.json_file import read_json

ARCHITECTURE: Final = "WhisperForConditionalGeneration"

_LANGUAGE: Final = re.compile(r"<\|([a-z]{2,3})\|>")
_NO_SPEECH: Final = ("<|nospeech|>", "<|nocaptions|>")


class _Architectures(msgspec.Struct):
    architectures: list[str] | None = None
    model_type: str | None = None


class _Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' WhisperConfig."""

    vocab_size: int = 51_865
    num_mel_bins: int = 80
    d_model: int = 384
    encoder_layers: int = 4
    encoder_attention_heads: int = 6
    encoder_ffn_dim: int = 1536
    decoder_layers: int = 4
    decoder_attention_heads: int = 6
    decoder_ffn_dim: int = 1536
    max_source_positions: int = 1500
    max_target_positions: int = 448
    activation_function: str = "gelu"
    scale_embedding: bool = False
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None


class _Generation(msgspec.Struct):
    is_multilingual: bool | None = None
    suppress_tokens: list[int] | None = None
    begin_suppress_tokens: list[int] | None = None


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def is_whisper(files: ModelFiles) -> bool:
    """Return whether a model transcribes speech with Whisper. Raises ModelError if config.json
    cannot be read."""
    return files.kind == "folder" and is_whisper_folder(files.path)


def is_whisper_folder(folder: Path) -> bool:
    """Return whether the config.json of `folder` names Whisper."""
    path = folder / "config.json"
    if not path.exists():
        return False
    try:
        named = msgspec.convert(read_json(path, dict[str, Any]), _Architectures)
    except msgspec.ValidationError:
        return False
    return ARCHITECTURE in (named.architectures or ()) or (
        named.architectures is None and named.model_type == "whisper"
    )


def whisper_spec(folder: Path) -> WhisperSpec:
    """Read the spec from config.json, generation_config.json and tokenizer.json. Raises ModelError
    naming the file and the key or token at fault."""
    path = folder / "config.json"
    config = read_json(path, _Config)
    if config.activation_function != "gelu" or config.scale_embedding:
        raise ModelError(
            f"{path}: activation_function must be gelu and scale_embedding false, not"
            f" {config.activation_function!r} and {config.scale_embedding}"
        )
    spec = WhisperSpec(
        encoder=WhisperEncoderSpec(
            AudioLayersSpec(
                config.encoder_layers,
                config.d_model,
                config.encoder_attention_heads,
                config.encoder_ffn_dim,
            ),
            config.num_mel_bins,
            config.max_source_positions,
        ),
        layers=config.decoder_layers,
        heads=config.decoder_attention_heads,
        intermediate=config.decoder_ffn_dim,
        vocab_size=config.vocab_size,
        max_tokens=config.max_target_positions,
        tokens=_tokens(folder, config),
    )
    spec.check(str(path))
    return spec


def _tokens(folder: Path, config: _Config) -> WhisperTokens:
    """Return the special tokens. The tokenizer names them; the suppressed ones are in
    generation_config.json or, in older folders, in config.json."""
    path = folder / "generation_config.json"
    own = read_json(path, _Generation) if path.exists() else _Generation()
    tokenizer = folder / "tokenizer.json"
    ids = {token.content: token.id for token in read_json(tokenizer, _Tokenizer).added_tokens}

    def id_of(*contents: str) -> int:
        for content in contents:
            if content in ids and 0 <= ids[content] < config.vocab_size:
                return ids[content]
        raise ModelError(f"{tokenizer}: added_tokens has no {contents[0]} below vocab_size")

    multilingual = own.is_multilingual
    if multilingual is None:
        multilingual = config.vocab_size > ENGLISH_ONLY_VOCAB
    languages = {found[1]: ids[text] for text in ids if (found := _LANGUAGE.fullmatch(text))}
    start, previous = id_of("<|startoftranscript|>"), id_of("<|startofprev|>")
    transcribe, translate = id_of("<|transcribe|>"), id_of("<|translate|>")
    no_speech = id_of(*_NO_SPEECH)
    control = (start, previous, transcribe, translate, no_speech)
    suppressed = {*(own.suppress_tokens or config.suppress_tokens or ()), *control}
    first = own.begin_suppress_tokens or config.begin_suppress_tokens or ()
    return WhisperTokens(
        start=start,
        end=id_of("<|endoftext|>"),
        transcribe=transcribe,
        translate=translate,
        previous=previous,
        no_speech=no_speech,
        no_timestamps=id_of("<|notimestamps|>"),
        languages=languages if multilingual else {},
        suppressed=tuple(one for one in sorted(suppressed) if 0 <= one < config.vocab_size),
        suppressed_first=tuple(one for one in first if 0 <= one < config.vocab_size),
    )
