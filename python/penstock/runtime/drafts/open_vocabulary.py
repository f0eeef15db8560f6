"""Decides whether a drafter has a draft head, from the files and the settings."""

from __future__ import annotations

import logging

from penstock.config import EngineSettings
from penstock.models.decoder.layer_weights import Weights
from penstock.models.decoder.pass_bytes import head_bytes, layer_bytes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.hub.model_files import ModelFiles
from penstock.runtime.drafts.draft_vocabulary import (
    DraftVocabulary,
    PassBytes,
    draft_vocabulary,
)
from penstock.runtime.drafts.vocabulary import vocabulary_tokens

log = logging.getLogger(__name__)


def open_vocabulary(
    files: ModelFiles, settings: EngineSettings, target: Weights, head: Weights, layers: int
) -> DraftVocabulary | None:
    """Return the tokens of the draft head of a drafter; None if it shall have none.

    - `files`: those with the tokenizer.
    - `target`: the weights of the model that is drafted for.
    - `head`: the weights with the language-model head of the drafter.
    - `layers`: the bytes of the other weights that a pass of the drafter reads.

    Raises ModelError if the tokenizer is not valid.
    """
    count = settings.draft_vocabulary
    if not (count and isinstance(target, DecoderWeights) and isinstance(head, DecoderWeights)):
        return None
    vocab_size = head.spec.vocab_size
    step = layer_bytes(target) + head_bytes(target, target.spec.vocab_size)
    cost = PassBytes(step, layers, head_bytes(head, vocab_size), vocab_size)
    tokens = vocabulary_tokens(files) if cost.saves(count) else None
    if tokens is None:
        return None
    opened = draft_vocabulary(tokens, count, cost)
    log.info(
        "drafts are chosen from %s of %s tokens, unless more than %d %% of the text are others",
        f"{len(opened.ids):,}",
        f"{vocab_size:,}",
        100 * opened.most_outside,
    )
    return opened
