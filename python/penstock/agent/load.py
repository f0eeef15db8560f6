"""Loads the runner that answers requests to a model, whichever kind of model it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from penstock.adapters.view import AdapterView
from penstock.agent.loop import AgentLoop, FileAttachments
from penstock.agent.model_media import MediaAccess, ModelMedia
from penstock.agent.sessions import SessionStore
from penstock.agent.tool_provider import ToolProvider
from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.engine.protocol import Engine
from penstock.engine.refusals import unsupported
from penstock.engine.types import (
    IMAGES_ALONE,
    NO_EMBEDDINGS,
    NO_IMAGES,
    NO_RANKING,
    NO_SPEECH,
    NO_TEXT,
    RANKING_ALONE,
    SPEECH_ALONE,
)
from penstock.generation import Generator
from penstock.generation.embeddings.conversations import (
    ONE_IMAGE,
    ONE_TEXT_OR_IMAGE,
    RenderedConversations,
    RenderedInputs,
    SingleItems,
)
from penstock.generation.embeddings.embeddings import EmbeddingRunner
from penstock.generation.embeddings.reranking import RerankRunner
from penstock.generation.images.images import ImageRunner
from penstock.generation.prompt.chat_template import select_chat_template
from penstock.generation.speech.speech import SpeechRunner
from penstock.generation.transcription.transcriber import Transcriber
from penstock.models.embedding.rerankers import load_rerank_parts
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.image_embedder import is_image_embedder
from penstock.models.loader.model_kind import model_kind
from penstock.models.loader.model_loader import load_embedding_parts, load_text_parts
from penstock.models.loader.sampling_defaults import SamplingDefaults, sampling_defaults
from penstock.models.loader.text_tower import has_text_tower, load_text_tower_parts
from penstock.models.whisper.folder import whisper_spec
from penstock.models.whisper.loader import load_whisper_parts
from penstock.text import load_tokenizer

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Runners:
    """The runner of one model. Exactly one of the runners is set.

    - `media`: the media of requests, None for a model that reads text only.
    - `transcribes`: the generator writes transcripts of recordings.
    - `reasons`: the generator's model writes reasoning before its answers.
    """

    generator: AgentLoop | None = None
    embedder: EmbeddingRunner | None = None
    reranker: RerankRunner | None = None
    speaker: SpeechRunner | None = None
    painter: ImageRunner | None = None
    media: ModelMedia | None = None
    transcribes: bool = False
    reasons: bool = False

    def must_generate(self) -> AgentLoop:
        """Return the generator. Raises InvalidRequest (`unsupported_model`) if the model has none;
        the other `must_` methods do the same for their runners."""
        return self._must(self.generator, NO_TEXT)

    def must_embed(self) -> EmbeddingRunner:
        return self._must(self.embedder, NO_EMBEDDINGS)

    def must_rerank(self) -> RerankRunner:
        return self._must(self.reranker, NO_RANKING)

    def must_speak(self) -> SpeechRunner:
        return self._must(self.speaker, NO_SPEECH)

    def must_paint(self) -> ImageRunner:
        return self._must(self.painter, NO_IMAGES)

    @property
    def sampling_defaults(self) -> SamplingDefaults | None:
        """The default sampling parameters, None for a model that generates no text."""
        return None if self.generator is None else self.generator.sampling_defaults

    async def close(self) -> None:
        """Stop the child processes of the model. May be called again. Does not close the engine."""
        if self.generator is not None:
            self.generator.close()
        if self.media is not None:
            await self.media.close()

    def refusal(self, otherwise: str) -> str:
        """Return the message for a request of another kind: what the model does if it does one
        thing alone, else `otherwise`."""
        alone = (
            (self.reranker, RANKING_ALONE),
            (self.speaker, SPEECH_ALONE),
            (self.painter, IMAGES_ALONE),
        )
        return next((text for one, text in alone if one is not None), otherwise)

    def _must(self, runner: _T | None, refusal: str) -> _T:
        if runner is None:
            raise unsupported(self.refusal(refusal))
        return runner


@dataclass(frozen=True, slots=True)
class SharedState:
    """State that the AgentLoops of a server share.

    - `attachments`: stores the files of requests, None to refuse requests with files.
    - `sessions`: the stored sessions, None to ignore session ids.
    - `tools`: chooses the server tools of requests, None to run none.
    - `media`: the settings and the fetcher for media in requests.
    """

    attachments: FileAttachments | None = None
    sessions: SessionStore | None = None
    tools: ToolProvider | None = None
    media: MediaAccess = field(default_factory=MediaAccess)


NO_STATE = SharedState()


def load_runners(
    files: ModelFiles,
    engine: Engine,
    tool_syntax: str | None = None,
    adapters: AdapterView | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008
    state: SharedState = NO_STATE,
) -> Runners:
    """Load the tokenizer and templates of an engine's model, and return the model's runner.

    - `tool_syntax`: the name of the tool call syntax, None to detect it.
    - `adapters`: the adapters that requests may name.
    - `sampling`: the operator's default sampling parameters, which override the model's.

    Raises ModelError.
    """
    match model_kind(files):
        case "reranker":
            return Runners(reranker=RerankRunner.load(engine, load_rerank_parts(files), adapters))
        case "embedding":
            return _load_embedder(files, engine, adapters, state)
        case "speech":
            return Runners(speaker=SpeechRunner(engine))
        case "transcription":
            return _load_transcriber(files, engine, state)
        case "image":
            return Runners(painter=ImageRunner(engine))
        case "text":
            pass
    text_parts = load_text_parts(files)
    defaults = sampling_defaults(files, text_parts.generation_defaults, sampling)
    media = ModelMedia.load(files, state.media)
    loader = None if media is None else media.loader
    generator = Generator.load(engine, text_parts, tool_syntax, adapters, defaults, loader)
    loop = AgentLoop(generator, state.attachments, sessions=state.sessions, tools=state.tools)
    return Runners(loop, media=media, reasons=generator.reasons)


def _load_embedder(
    files: ModelFiles, engine: Engine, adapters: AdapterView | None, state: SharedState
) -> Runners:
    """Return the runner of a model that embeds texts, images, or texts with images."""
    media = ModelMedia.load(files, state.media)
    if media is not None and is_image_embedder(files):
        return Runners(embedder=_lone_embedder(files, engine, media), media=media)
    parts = load_embedding_parts(files)
    if media is None and not parts.templated:
        return Runners(embedder=EmbeddingRunner.load(engine, parts, adapters))
    text = load_text_parts(files)
    tokenizer = load_tokenizer(text)
    loader = None if media is None else media.loader
    placeholders = {} if loader is None else loader.processor.placeholders
    template, _ = select_chat_template(text, tokenizer, None, placeholders)
    if parts.templated and template is None:
        raise ModelError(f"{files.path}: the model embeds messages, but has no chat template")
    rendered = RenderedConversations(engine, tokenizer, template, loader)
    conversations = RenderedInputs(rendered, parts.prompt) if parts.templated else rendered
    embedder = EmbeddingRunner.load(engine, parts, adapters, conversations)
    return Runners(embedder=embedder, media=media)


def _lone_embedder(files: ModelFiles, engine: Engine, media: ModelMedia) -> EmbeddingRunner:
    """Return the runner of a model that embeds an image, or a text, by itself."""
    if not has_text_tower(files):
        return EmbeddingRunner(engine, None, conversations=SingleItems(media.loader, ONE_IMAGE))
    conversations = SingleItems(media.loader, ONE_TEXT_OR_IMAGE)
    parts = load_text_tower_parts(files)
    return EmbeddingRunner.load(engine, parts, conversations=conversations)


def _load_transcriber(files: ModelFiles, engine: Engine, state: SharedState) -> Runners:
    """Return the runner of a model that transcribes speech. It calls no tools."""
    media = ModelMedia.load(files, state.media)
    assert media is not None, "a model that transcribes reads audio"
    spec = whisper_spec(files.path)
    parts = load_whisper_parts(files, spec)
    transcriber = Transcriber.load(engine, parts, spec, media.loader)
    loop = AgentLoop(transcriber, state.attachments, sessions=state.sessions)
    return Runners(loop, media=media, transcribes=True)
