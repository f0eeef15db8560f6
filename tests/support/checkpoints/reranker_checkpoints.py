"""Small rerankers with random weights, in folders written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch

from tests.support.checkpoints.embedding_checkpoints import small_body, word_pieces

ROBERTA = {"pad_token_id": 1, "max_position_embeddings": 82}
MODERN = {"num_hidden_layers": 5, "local_attention": 16} | dict.fromkeys(
    ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0
)


def small_reranker(name: str, **options: Any) -> Any:
    """Return a classifier with one label, or with `num_labels`."""
    model = small_body(name, "ForSequenceClassification", **({"num_labels": 1} | options))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(
                2.0 if parameter.ndim == 2 else 1.0
            )  # otherwise all pairs have nearly the same logit
    return model


def save_reranker(folder: Path, model: Any) -> Path:
    """Save the model with a tokenizer that frames pairs and marks their texts with token types."""
    model.save_pretrained(folder)
    pair_pieces().save(str(folder / "tokenizer.json"))
    return folder


def pair_pieces() -> tokenizers.Tokenizer:
    """Return the tokenizer of `embedding_checkpoints`, for pairs too: [CLS] is 2, [SEP] is 3, a is
    4."""
    tokenizer = word_pieces()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


@torch.no_grad()
def expected_logit(model: Any, tokens: list[int], second_start: int) -> torch.Tensor:
    """Return the logit [1] that transformers computes, with token types if the model has any."""
    types = [int(index >= second_start) for index in range(len(tokens))]
    given = {"input_ids": torch.tensor([tokens])}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        given["token_type_ids"] = torch.tensor([types])
    return model(**given).logits[0]
