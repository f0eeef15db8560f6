"""Opens the drafter that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from penstock.base.errors import ModelError
from penstock.config import EngineSettings, read_environment
from penstock.models.decoder.mtp_weights import MtpWeights
from penstock.models.decoder.predicting_head import HeadWeights
from penstock.models.hub.hub_access import hub_access_of
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.assistant_loader import assistant_family
from penstock.models.loader.model_loader import LoadedModel
from penstock.quant.safetensors.float8_checkpoint import Float8Storage
from penstock.runtime.backend import Backend
from penstock.runtime.drafter import Drafter
from penstock.runtime.drafts.assistant import open_assistant
from penstock.runtime.drafts.draft_vocabulary import DraftVocabulary
from penstock.runtime.drafts.memory import DrafterMemory
from penstock.runtime.drafts.mtp import OpenedMtp
from penstock.runtime.drafts.open_draft_model import open_draft_model
from penstock.runtime.drafts.open_vocabulary import open_vocabulary
from penstock.runtime.memory import MemoryPlan
from penstock.runtime.row_table import RowTable


class OpenedDrafter(Protocol):
    """A drafter whose files have been checked, and whose weights are not packed yet."""

    @property
    def head(self) -> HeadWeights | None:
        """The weights that the backend of the target packs; None if the drafter has a backend of
        its own."""

    @property
    def vocabulary(self) -> DraftVocabulary | None:
        """The tokens of its draft head; None without one."""

    def memory(self, plan: MemoryPlan) -> DrafterMemory:
        """Return the memory that the drafter needs beside a target with the sizes of `plan`."""
        ...

    def start(self, plan: MemoryPlan, rows: RowTable, backend: Backend) -> Drafter:
        """Pack the weights and return the drafter. `rows` and `backend` are those of the target.
        Raises ModelError if the weights cannot be read."""
        ...


def open_drafter(
    files: ModelFiles,
    model: LoadedModel,
    settings: EngineSettings,
    home: Path | None,
    float8: Float8Storage = "bf16",
) -> OpenedDrafter | None:
    """Return the drafter that the settings name for the target `model`, None if they name none.

    `files`: the files of the target. `home`: as for `start_runtime`. `float8`: as for `load_model`.

    Raises ModelError if the drafter is not found or does not fit the target.
    """
    if not settings.speculates:
        return None
    if settings.draft_model is not None:
        environment = read_environment()
        access, home_folder = hub_access_of(environment), home or environment.home
        draft_files = resolve_model(settings.draft_model, home_folder, access)
        family = assistant_family(draft_files)
        if family is not None:
            return open_assistant(draft_files, family, files, model, settings)
        return open_draft_model(draft_files, files, model, settings, home, float8)
    if not isinstance(model.mtp, MtpWeights):
        return None
    head = model.weights if model.mtp.shares_head else model.mtp.layer
    given = files, settings, model.weights, head
    return OpenedMtp(model.spec, model.mtp, open_vocabulary(*given, model.mtp.pass_bytes()))


def mtp_of(settings: EngineSettings) -> Literal["ignored", "required"]:
    """Return whether the MTP head of a model must be opened."""
    wanted = settings.speculates and settings.speculative_algorithm == "mtp"
    return "required" if wanted else "ignored"


def refuse_drafter_on_gpus(settings: EngineSettings) -> None:
    """Raise ModelError if the settings name a drafter on several GPUs."""
    devices = settings.tensor_parallel_size
    if settings.draft_model is not None and devices > 1:
        raise ModelError(
            f"draft_model is set and tensor_parallel_size is {devices}; a draft model runs on a CPU"
            " or on one GPU"
        )
    if settings.speculative_algorithm == "mtp" and devices > 1:
        raise ModelError(
            f"speculative_algorithm is mtp and tensor_parallel_size {devices}; an MTP head runs on"
            " one GPU, on several it must be none or ngram"
        )
