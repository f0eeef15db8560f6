"""Makes BERT's WordPiece tokenizer from GGUF metadata. WordPiece splits a word into the longest
known pieces."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from penstock.base.errors import ModelError
from penstock.models.tokenizer.tokenizer_data import TokenizerData, TokenType
from penstock.text.tokenizers.backend import SPACE

_CONTINUES = "##"
_LONGEST_WORD_CHARS = 100  # as in BERT's own tokenizer; a longer word is unknown


def word_pieces(data: TokenizerData) -> Backend:
    """Make a WordPiece tokenizer that adds the special tokens that the metadata name.

    The tokenizer lowercases text and removes accents if the vocabulary has no uppercase letters,
    since GGUF has no key for this. Raises ModelError that names a missing key.
    """
    pieces = [_piece(token) for token in data.tokens]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    unknown = _named(pieces, "unknown", data.unknown_id, "[UNK]")
    backend = Backend(
        models.WordPiece(
            vocab,
            unk_token=unknown,
            max_input_chars_per_word=_LONGEST_WORD_CHARS,
            continuing_subword_prefix=_CONTINUES,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=not _has_case(pieces))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(_CONTINUES)
    first = _named(pieces, "cls", _either(data.cls_id, data.bos_id), "[CLS]")
    last = _named(pieces, "seperator", _either(data.sep_id, data.eos_id), "[SEP]")
    kinds = zip(pieces, data.token_types, strict=False)
    control = {piece for piece, kind in kinds if kind == TokenType.CONTROL}
    backend.add_special_tokens([_special(piece) for piece in control | {unknown, first, last}])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        special_tokens=[(first, vocab[first]), (last, vocab[last])],
    )
    return backend


def _piece(token: str) -> str:
    """Convert a GGUF token to BERT's spelling. GGUF marks a token that starts a word, BERT marks a
    token that continues a word with "##". Special tokens in brackets have no mark."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[1:] if token.startswith(SPACE) else _CONTINUES + token


def _has_case(pieces: list[str]) -> bool:
    return any(piece != piece.lower() for piece in pieces if not piece.startswith("["))


def _either(own: int | None, other: int | None) -> int | None:
    """Return `own`, or `other` if `own` is None: older files name BOS and EOS instead of CLS and
    SEP."""
    return other if own is None else own


def _named(pieces: list[str], key: str, index: int | None, usual: str) -> str:
    if index is not None:
        return pieces[index]
    if usual not in pieces:
        raise ModelError(f"tokenizer.ggml.{key}_token_id is missing, and no token is {usual}")
    return usual


def _special(piece: str) -> AddedToken:
    return AddedToken(piece, special=True, normalized=False)
