"""The kinds of content that a model reads and makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from penstock.agent.load import Runners
from penstock.models.media.prepared import MediaKind

InputModality: TypeAlias = Literal["text"] | MediaKind
OutputModality: TypeAlias = Literal[
    "text", "transcription", "embeddings", "rerank", "speech", "image"
]


@dataclass(frozen=True, slots=True)
class Modalities:
    """The content of a model's requests and answers. The names are those of OpenRouter's API."""

    inputs: tuple[InputModality, ...]
    output: OutputModality


def modalities_of(runners: Runners, media: tuple[MediaKind, ...]) -> Modalities:
    """Return the modalities of the model that `runners` answer for. `media`: the kinds of media
    that its engine reads."""
    if runners.speaker is not None:
        return Modalities(("text",), "speech")
    if runners.painter is not None:
        return Modalities(("text",), "image")
    if runners.reranker is not None:
        return Modalities(("text",), "rerank")
    if runners.transcribes:
        return Modalities(("audio",), "transcription")
    if runners.embedder is None:
        return Modalities(("text", *media), "text")
    return Modalities(("text", *media) if runners.embedder.reads_text else media, "embeddings")
