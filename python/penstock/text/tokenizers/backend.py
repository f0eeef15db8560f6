"""Builds a tokenizer of the `tokenizers` library from a model's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from penstock.base.errors import ModelError
from penstock.models.tokenizer.tokenizer_data import TokenizerData, TokenType
from penstock.text.tokenizers.panic_guard import load_or_model_error
from penstock.text.tokenizers.pretokenizers import split_named

SPACE = "\u2581"
"""SentencePiece's character for a space."""


def build_backend(data: TokenizerData) -> Backend:
    """Make a tokenizer from GGUF metadata. Raises ModelError that names a faulty or unsupported
    key."""
    if data.token_types and len(data.token_types) != len(data.tokens):
        raise ModelError("tokenizer.ggml.token_type is not as long as tokenizer.ggml.tokens")
    if data.model == "gpt2":
        backend = _byte_level(data)
    elif data.model == "llama":
        backend = _sentencepiece(data)
    else:
        raise ModelError(f"tokenizer.ggml.model is {data.model!r}; this build knows gpt2 and llama")
    backend.add_special_tokens(_added(data, TokenType.CONTROL, TokenType.UNKNOWN))
    backend.add_tokens(_added(data, TokenType.USER_DEFINED))
    return backend


def bos_eos_tokens(data: TokenizerData) -> tuple[list[int], list[int]]:
    """Return the BOS and EOS tokens that the metadata ask for: ids before and after a text."""
    before = [data.bos_id] if _wants_bos(data) and data.bos_id is not None else []
    after = [data.eos_id] if data.add_eos and data.eos_id is not None else []
    return before, after


def _wants_bos(data: TokenizerData) -> bool:
    """Whether a BOS token comes before a text. If the metadata do not specify it, SentencePiece
    models have a BOS token, and the pre-tokenizer decides for other models."""
    if data.add_bos is not None:
        return data.add_bos
    return split_named(data.pre).adds_bos if data.model == "gpt2" else True


def _byte_level(data: TokenizerData) -> Backend:
    split = split_named(data.pre)
    if not data.merges:
        raise ModelError("tokenizer.ggml.merges is missing")
    vocab = {token: index for index, token in enumerate(data.tokens)}
    backend = Backend(
        _bpe(vocab, _pairs(data.merges), ignore_merges=split.ignore_merges, byte_fallback=False)
    )
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(data: TokenizerData) -> Backend:
    """Make a SentencePiece BPE tokenizer. A normalizer adds the space prefix, so that the prefix is
    also added after every control token, as in the tokenizer.json files of Llama 2 and similar
    models."""
    vocab = {token: index for index, token in enumerate(data.tokens)}
    if data.merges:
        merges = _pairs(data.merges)
    elif len(data.scores) == len(data.tokens):
        merges = merges_of_scores(data.tokens, data.scores)
    else:
        raise ModelError("tokenizer.ggml.scores is missing or not as long as tokenizer.ggml.tokens")
    unknown = data.tokens[data.unknown_id] if data.unknown_id is not None else None
    backend = Backend(_bpe(vocab, merges, byte_fallback=True, unknown=unknown))
    # As in the tokenizer.json of such models: the grammar library reads token bytes from the
    # decoder.
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    spaces = normalizers.Replace(" ", SPACE)
    if adds_space_prefix(data):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    else:
        backend.normalizer = spaces
    return backend


def adds_space_prefix(data: TokenizerData) -> bool:
    """Whether a space is prepended to text. True for SentencePiece models unless the metadata say
    otherwise."""
    if data.model != "llama":
        return False
    return data.add_space_prefix is not False


def _bpe(
    vocab: dict[str, int],
    merges: list[tuple[str, str]],
    *,
    byte_fallback: bool,
    ignore_merges: bool = False,
    unknown: str | None = None,
) -> models.BPE:
    def make() -> models.BPE:
        return models.BPE(
            vocab=vocab,
            merges=merges,
            unk_token=unknown,
            fuse_unk=unknown is not None,
            byte_fallback=byte_fallback,
            ignore_merges=ignore_merges,
        )

    return load_or_model_error("tokenizer.ggml.merges do not fit the vocabulary", make)


def _pairs(merges: Iterable[str]) -> list[tuple[str, str]]:
    """Split each merge "left right" into (left, right). A leading space belongs to `left`."""
    pairs = []
    for merge in merges:
        left, separator, right = merge.partition(" ")
        if not left:
            left, separator, right = merge[1:].partition(" ")
            left = " " + left
        if not separator:
            raise ModelError(f"tokenizer.ggml.merges has an entry without a pair: {merge!r}")
        pairs.append((left, right))
    return pairs


def merges_of_scores(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the BPE merges that a SentencePiece vocabulary implies, best first.

    SentencePiece joins the adjacent tokens whose concatenation has the highest score. So every way
    to split a token into two tokens is a merge, ranked by the token's score.
    """
    ids = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int]] = []
    for token, score in zip(tokens, scores, strict=True):
        cuts = []
        for at in range(1, len(token)):
            left, right = ids.get(token[:at]), ids.get(token[at:])
            if left is not None and right is not None:
                cuts.append((left, right))
        ranked.extend((-score, left, right) for left, right in sorted(cuts))
    ranked.sort(key=lambda entry: entry[0])
    return [(tokens[left], tokens[right]) for _, left, right in ranked]


def _added(data: TokenizerData, *kinds: TokenType) -> list[AddedToken]:
    special = TokenType.CONTROL in kinds
    return [
        AddedToken(token, special=special, normalized=False)
        for token, token_type in zip(data.tokens, data.token_types, strict=False)
        if token_type in kinds and token
    ]
