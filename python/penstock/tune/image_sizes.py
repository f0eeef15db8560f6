"""The images of a request to tune: their tokens in the context, and their memory."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.base.errors import ServiceError
from penstock.config import EngineSettings
from penstock.models.loader.model_loader import LoadedModel
from penstock.models.media.processor import MediaProcessor
from penstock.runtime.mebibytes import MIB
from penstock.tune.candidates import Remarks
from penstock.tune.types import DEFAULT_IMAGE_LENGTH, DEFAULT_IMAGES, TuneModelRequest

MAX_LENGTH = 8192
"""The longest side of an image that is tried: larger ones are refused when they are decoded."""


def fit_images(
    request: TuneModelRequest,
    model: LoadedModel,
    settings: EngineSettings,
    context: int,
    remarks: Remarks,
) -> EngineSettings:
    """Return `settings` with an encoder cache for the images of `request`."""
    asked = request.max_num_images is not None or request.max_image_length is not None
    media = model.media_spec
    if media is None or "image" not in media.processor.placeholders:
        if asked:
            remarks.notes.append(
                "max_num_images and max_image_length have no effect: the model reads no images"
            )
        return settings
    count = request.max_num_images or DEFAULT_IMAGES
    length = min(request.max_image_length or DEFAULT_IMAGE_LENGTH, MAX_LENGTH)
    tokens = image_tokens(media.processor, length)
    if tokens is None:
        remarks.warnings.append(f"the model takes no square image of {length} pixels")
        return settings
    remarks.notes.append(
        f"an image of {length} x {length} pixels takes {tokens} tokens; {count} take"
        f" {count * tokens} of the context of {context}"
    )
    if count * tokens >= context:
        remarks.warnings.append(
            f"{count} images of {length} x {length} pixels leave no room for text in a context of"
            f" {context} tokens"
        )
    needed_mb = -(-4 * count * tokens * model.spec.hidden_size // MIB)
    if needed_mb <= settings.encoder_cache_mb:
        return settings
    return msgspec.structs.replace(settings, encoder_cache_mb=needed_mb)


def image_tokens(processor: MediaProcessor, length: int) -> int | None:
    """Return the tokens of a square image, None if the model takes none of this size."""
    try:
        image = processor.image(np.zeros((length, length, 3), np.uint8))
    except ServiceError:
        return None
    return len(processor.expand(image, lambda text: (0,)).token_ids)
