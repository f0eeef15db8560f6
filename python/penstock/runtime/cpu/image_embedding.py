"""The CPU runtimes of models that embed images alone, or images and texts apart: the row that a
tower of images returns is the vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.config import CPU_STEP_SIZES, EngineSettings
from penstock.kernels.native import NativeOps, Pool
from penstock.models.loader.image_embedder import LoadedImageEmbedder
from penstock.runtime.cpu.embedding import EmbeddingInfo, NativeEmbedding
from penstock.runtime.cpu.embedding_inputs import SequenceMedia
from penstock.runtime.cpu.media_plans import rows_of
from penstock.runtime.mebibytes import mib
from penstock.runtime.media import TowerMedia
from penstock.runtime.media_memory import media_memory
from penstock.runtime.memory import FIXED_BYTES, media_terms, refuse_bytes

Floats = npt.NDArray[np.float32]


class ImageEmbedding:
    """An `EmbeddingRuntime` for a model or tower without text. Each sequence is one item.

    `available`: bytes of memory that the model must fit, None for no check. Raises ModelError if
    the model does not fit or its weights cannot be read.
    """

    adapters = None

    def __init__(
        self, model: LoadedImageEmbedder, settings: EngineSettings, available: int | None = None
    ) -> None:
        memory = media_memory(model.width, model.media_spec, model.media, settings)
        needed = memory.total_bytes + FIXED_BYTES
        self.report = f"{media_terms(memory)}{mib(FIXED_BYTES)} fixed = {mib(needed)} MiB"
        refuse_bytes(needed, available, self.report, "a smaller encoder_cache_mb needs less")
        ops = NativeOps.eager(Pool(settings.threads or available_cores()))
        pairs = zip(model.media_spec.towers, model.media, strict=True)
        towers = [(spec.kinds, loaded.build(ops)) for spec, loaded in pairs]
        self.media: TowerMedia[Any] = TowerMedia(towers, ops, model.width, rows_of)
        rows = settings.step_sizes(CPU_STEP_SIZES).max_num_seqs
        self.info = EmbeddingInfo(
            model_id=model.model_id,
            fingerprint=f"{model.fingerprint}-{ops.isa}",
            vocab_size=0,
            max_model_len=0,
            step_tokens=0,
            max_rows=rows,
            width=model.width,
            weight_bytes=memory.tower_bytes,
            memory_bytes=needed,
            lone_kinds=self.media.kinds,
        )

    def embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
        media: Sequence[SequenceMedia] = (),
    ) -> Floats:
        """Return the vectors of the items; see `EmbeddingRuntime.embed`. The sequences have no
        tokens."""
        rows = [self.media.encoded[run.digest].rows for own in media for run in own.runs]
        return np.concatenate(rows)

    def close(self) -> None:
        """Release the towers and the encoded items."""
        del self.media


class ImageAndTextEmbedding:
    """An `EmbeddingRuntime` for a model with a tower for images and one for texts. Each sequence is
    one item or one text."""

    adapters = None

    def __init__(self, images: ImageEmbedding, texts: NativeEmbedding) -> None:
        if images.info.width != texts.info.width:
            raise ModelError(
                f"{texts.info.model_id}: images have vectors of {images.info.width} numbers, but"
                f" texts of {texts.info.width}"
            )
        self._images, self._texts = images, texts
        self.media = images.media
        self.report = f"images: {images.report}; texts: {texts.report}"
        self.info = replace(
            texts.info,
            weight_bytes=images.info.weight_bytes + texts.info.weight_bytes,
            memory_bytes=images.info.memory_bytes + texts.info.memory_bytes,
            lone_kinds=images.info.lone_kinds,
        )

    def embed(
        self,
        sequences: Sequence[Sequence[int]],
        slots: Sequence[int] = (),
        second_starts: Sequence[int] = (),
        media: Sequence[SequenceMedia] = (),
    ) -> Floats:
        """Return the vectors of the sequences; see `EmbeddingRuntime.embed`. A sequence has tokens
        or one item."""
        vectors = np.empty((len(sequences), self.info.width), np.float32)
        texts = [row for row, tokens in enumerate(sequences) if tokens]
        items = [row for row, tokens in enumerate(sequences) if not tokens]
        if texts:
            vectors[texts] = self._texts.embed([sequences[row] for row in texts])
        if items:
            vectors[items] = self._images.embed(
                [()] * len(items), media=[media[row] for row in items]
            )
        return vectors

    def close(self) -> None:
        """Release both towers."""
        self._texts.close()
        self._images.close()
        del self.media
