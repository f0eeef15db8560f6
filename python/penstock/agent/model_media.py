"""Connects the media of requests with the decoding processes of a model and the fetcher."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.config import MediaSettings
from penstock.generation.media.loader import ContentFetcher, MediaLoader, RequestMediaLimits
from penstock.media.cache import MediaCache
from penstock.media.decoders import MediaDecoders
from penstock.media.limits import MediaLimits
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.media import media_spec


@dataclass(frozen=True, slots=True)
class MediaAccess:
    """The settings of media in requests. `fetcher`: fetches media given by URL; None: URLs are
    refused."""

    settings: MediaSettings = field(default_factory=MediaSettings)
    fetcher: ContentFetcher | None = None


@dataclass(frozen=True, slots=True)
class ModelMedia:
    """The media of one model's requests. `decoders`: its decoding processes."""

    loader: MediaLoader
    decoders: MediaDecoders

    @classmethod
    def load(cls, files: ModelFiles, access: MediaAccess) -> ModelMedia | None:
        """Read the media side of a model. Returns None if it reads text only. No process starts
        before the first request with media. Raises ModelError."""
        spec = media_spec(files)
        if spec is None:
            return None
        settings = access.settings
        decoders = MediaDecoders(files, MediaLimits.of(settings))
        limits = RequestMediaLimits(settings.max_media_items)
        cache = MediaCache(decoders, files.model_id)
        return cls(MediaLoader(spec.processor, cache, access.fetcher, limits), decoders)

    async def close(self) -> None:
        """End the decoding processes. May be called again."""
        await self.decoders.close()
