"""XLM-RoBERTa: RoBERTa under another name (BGE-M3, multilingual E5)."""

from __future__ import annotations

from penstock.models.configuration.family import Family, HfEncoder
from penstock.models.families import bert, roberta

FAMILY = Family(
    hf=HfEncoder(
        "xlm-roberta", "XLMRobertaModel", roberta.spec, bert.NAMES, classifier=roberta.classifier
    )
)
