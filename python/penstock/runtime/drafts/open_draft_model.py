"""Opens and starts the draft model that the settings name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.decoder.pass_bytes import layer_bytes
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import LoadedModel, load_model
from penstock.quant.safetensors.float8_checkpoint import Float8Storage
from penstock.runtime.backend import Backend
from penstock.runtime.cpu.native import NativeBackend
from penstock.runtime.cpu.start_backend import start_backend
from penstock.runtime.drafts.draft_model import DraftModel
from penstock.runtime.drafts.draft_vocabulary import DraftVocabulary, draft_head_bytes
from penstock.runtime.drafts.memory import NO_DRAFTER, DrafterMemory
from penstock.runtime.drafts.open_vocabulary import open_vocabulary
from penstock.runtime.drafts.vocabulary import check_vocabulary
from penstock.runtime.media_memory import NO_MEDIA
from penstock.runtime.memory import MemoryPlan, buffer_bytes, refuse_8_bit_cache
from penstock.runtime.row_table import RowTable
from penstock.runtime.state_memory import NO_STATES
from penstock.runtime.weight_bytes import packed_bytes
from penstock.runtime.weight_quantization import weight_form


@dataclass(frozen=True, slots=True)
class OpenedDraftModel:
    """A draft model that fits its target.

    `settings`: the settings of the engine without LoRA.
    `packed_bytes`: the bytes of its packed weights.
    `target_vocab`: rows of the embedding of the target.
    `vocabulary`: the tokens of its draft head; None without one.
    `home`: as for `start_runtime`.
    """

    model: LoadedModel
    settings: EngineSettings
    packed_bytes: int
    target_vocab: int
    vocabulary: DraftVocabulary | None
    home: Path | None

    @property
    def head(self) -> None:
        """See `OpenedDrafter.head`."""
        return None

    def memory(self, plan: MemoryPlan) -> DrafterMemory:
        """Return the memory that the draft model needs beside a target with the sizes of `plan`."""
        spec = self.model.spec
        sizes = plan.step_tokens, plan.sizes.max_num_seqs, self._context(plan)
        return DrafterMemory(
            weight_bytes=self.packed_bytes + draft_head_bytes(self.vocabulary),
            cache=replace(plan.cache, layers=spec.caches),
            buffer_bytes=buffer_bytes(spec, *sizes),
        )

    def start(self, plan: MemoryPlan, rows: RowTable, backend: Backend) -> DraftModel:
        """Pack the weights and return the drafter; see `OpenedDrafter.start`. It uses the threads
        of the target."""
        own = plan.drafter
        assert own.cache is not None
        memory = replace(
            plan,
            weight_bytes=own.weight_bytes,
            cache=own.cache,
            buffer_bytes=own.buffer_bytes,
            max_model_len=self._context(plan),
            adapter_bytes=0,
            media=NO_MEDIA,
            states=NO_STATES,
            drafter=NO_DRAFTER,
        )
        pool = backend.pool if isinstance(backend, NativeBackend) else None
        ids = None if self.vocabulary is None else self.vocabulary.ids
        model = replace(self.model, draft_ids=ids)
        started, _ = start_backend(model, memory, self.settings, None, self.home, pool)
        vocab_sizes = self.target_vocab, self.model.spec.vocab_size
        return DraftModel(rows, started, memory, vocab_sizes, self.vocabulary)

    def _context(self, plan: MemoryPlan) -> int:
        return min(plan.max_model_len, self.model.spec.max_model_len)


def open_draft_model(
    draft_files: ModelFiles,
    files: ModelFiles,
    model: LoadedModel,
    settings: EngineSettings,
    home: Path | None,
    float8: Float8Storage = "bf16",
) -> OpenedDraftModel:
    """Return the draft model in `draft_files` for the target `model`, whose files are `files`.
    `float8`: as for `load_model`.

    Raises ModelError if it cannot be read, has recurrent layers or another vocabulary, or has
    latent attention while the settings ask for an 8-bit cache.
    """
    draft = load_model(draft_files, settings.dtype, float8=float8, form=weight_form(settings))
    if draft.spec.is_recurrent:
        raise ModelError(
            f"draft_model {draft.model_id}: it has recurrent layers, whose state cannot go back to"
            " an earlier token; a draft model must have only attention layers"
        )
    if any(size is not None and size.latent for size in draft.spec.caches):
        refuse_8_bit_cache(settings, f"the draft model {draft.model_id} with latent attention")
    check_vocabulary(files, model.spec.vocab_size, draft_files, draft.spec.vocab_size)
    layers = layer_bytes(draft.weights) if isinstance(draft.weights, DecoderWeights) else 0
    return OpenedDraftModel(
        model=replace(draft, media_spec=None, media=()),
        settings=msgspec.structs.replace(settings, lora=None),
        packed_bytes=packed_bytes(draft_files, draft, settings),
        target_vocab=model.spec.vocab_size,
        vocabulary=open_vocabulary(draft_files, settings, model.weights, draft.weights, layers),
        home=home,
    )
