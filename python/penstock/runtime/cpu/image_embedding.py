"""The CPU runtime of models that only embed images: the row that a tower returns is the vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.base.resources import available_cores
from penstock.config import CPU_STEP_SIZES, EngineSettings
from penstock.kernels.native import NativeOps, Pool
from penstock.models.loader.image_embedder import LoadedImageEmbedder
from penstock.runtime.cpu.embedding import EmbeddingInfo
from penstock.runtime.cpu.embedding_inputs import SequenceMedia
from penstock.runtime.cpu.media_plans import rows_of
from penstock.runtime.media import TowerMedia
from penstock.runtime.media_memory import media_memory
from penstock.runtime.memory import FIXED_BYTES, media_terms, mib, refuse_bytes

Floats = npt.NDArray[np.float32]


class ImageEmbedding:
    """An `EmbeddingRuntime` for a model without text. Each sequence is one item.

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
