"""What a BERT-type encoder is, as data, and how a Hugging Face config fills it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.models.spec import MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, check_sizes
from penstock.quant.json_file import read_json


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder whose blocks normalise their results (post-norm). Sizes are counts of elements;
    `ff` is the feed-forward width. Position p reads row p + `position_offset` of the `positions`
    rows of its table. `token_types` 0: no such table."""

    architecture: str
    width: int
    heads: int
    ff: int
    vocab: int
    positions: int
    position_offset: int
    token_types: int
    layers: int
    norm_eps: float

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def context_tokens(self) -> int:
        """The longest sequence that has positions."""
        return self.positions - self.position_offset

    def check(self, where: str) -> None:
        """Refuse impossible sizes with a ModelError that opens with `where`."""
        limits = {
            "number of layers": (self.layers, MAX_LAYERS),
            "width": (self.width, MAX_WIDTH),
            "heads": (self.heads, MAX_WIDTH),
            "feed-forward width": (self.ff, MAX_WIDTH),
            "vocabulary": (self.vocab, MAX_VOCAB),
            "context length": (self.context_tokens, MAX_CONTEXT),
        }
        check_sizes(where, limits)
        if self.width % self.heads:
            raise ModelError(f"{where}: {self.heads} heads over a width of {self.width}")
        if not 0 <= self.token_types <= MAX_VOCAB or self.norm_eps <= 0:
            raise ModelError(f"{where}: {self.token_types} token types, norm eps {self.norm_eps}")


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """`offset_positions`: positions are counted from the one after the padding's."""

    name: str
    offset_positions: bool = False


ENCODER_ARCHITECTURES = {
    "BertModel": EncoderFamily("bert"),
    "BertForMaskedLM": EncoderFamily("bert"),
    "RobertaModel": EncoderFamily("roberta", offset_positions=True),
    "RobertaForMaskedLM": EncoderFamily("roberta", offset_positions=True),
    "XLMRobertaModel": EncoderFamily("xlm-roberta", offset_positions=True),
    "XLMRobertaForMaskedLM": EncoderFamily("xlm-roberta", offset_positions=True),
}


class _EncoderConfig(msgspec.Struct):
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str | None = "absolute"
    pad_token_id: int | None = 0


def encoder_spec(path: Path, family: EncoderFamily) -> EncoderSpec:
    """The encoder of a config.json. Raises ModelError naming what is not supported."""
    config = read_json(path, _EncoderConfig)
    if config.hidden_act != "gelu":
        raise ModelError(f"{path}: hidden_act {config.hidden_act!r} is not supported, only gelu")
    if config.position_embedding_type not in ("absolute", None):
        kind = config.position_embedding_type
        raise ModelError(f"{path}: position_embedding_type {kind!r} is not supported")
    offset = (config.pad_token_id or 0) + 1 if family.offset_positions else 0
    spec = EncoderSpec(
        architecture=family.name,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        ff=config.intermediate_size,
        vocab=config.vocab_size,
        positions=config.max_position_embeddings,
        position_offset=offset,
        token_types=config.type_vocab_size,
        layers=config.num_hidden_layers,
        norm_eps=config.layer_norm_eps,
    )
    spec.check(str(path))
    return spec
