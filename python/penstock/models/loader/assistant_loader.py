"""Opens the files of an assistant, which drafts for another model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.config.weight_types import WeightForm
from penstock.models.configuration.family import AssistantFamily
from penstock.models.decoder.assistant_spec import AssistantSpec, paired_spec
from penstock.models.decoder.assistant_weights import AssistantNames, AssistantWeights
from penstock.models.decoder.spec import DecoderSpec
from penstock.models.families import registry
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import quantized_forms
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.json_file import read_json
from penstock.quant.quantizing_checkpoint import QuantizingCheckpoint
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder


def assistant_family(files: ModelFiles) -> AssistantFamily | None:
    """Return the family of an assistant; None if the files are those of another model. Raises
    ModelError if they cannot be read."""
    if files.kind == "gguf":
        return registry.assistant_of_gguf(files.path)
    return registry.assistant_of_folder(files.path)


def load_assistant(
    files: ModelFiles,
    family: AssistantFamily,
    target: DecoderSpec,
    dtype: Literal["auto", "f32"],
    form: WeightForm | None = None,
) -> AssistantWeights:
    """Open the assistant of `family` in `files` for a model with the spec `target`.

    `form`: as for `load_model`. A head with centroids is not quantized.

    Raises ModelError naming what does not fit the target, or the file and its key or tensor at
    fault.
    """
    where = f"draft_model {files.model_id}"
    if target.architecture not in family.targets:
        raise ModelError(
            f"{where}: {family.architecture} drafts only for {' and '.join(family.targets)}, and"
            f" the model is {target.architecture}"
        )
    spec, names, checkpoint, ordering = _opened(files, family)
    spec = paired_spec(spec, target, where)
    if form is not None:
        quantized = quantized_forms(names.decoder, spec.decoder, form)
        if spec.centroids is not None:
            del quantized[f"{names.decoder.embedding}.weight"]
        checkpoint = QuantizingCheckpoint(checkpoint, quantized)
    return AssistantWeights(checkpoint, names, spec, dtype, ordering)


def _opened(
    files: ModelFiles, family: AssistantFamily
) -> tuple[AssistantSpec, AssistantNames, Checkpoint, Callable[[], npt.NDArray[np.generic]] | None]:
    """Return the spec, the names of the tensors and the checkpoint of an assistant, and the
    function that reads the tokens in the order of their clusters."""
    if files.kind == "gguf":
        assert family.read_gguf is not None and family.gguf_names is not None
        file = GgufFile(files.path)
        return family.read_gguf(file), family.gguf_names, file, None
    path = files.path / "config.json"
    spec = family.read_keys(read_json(path, dict[str, Any]), str(path))
    ordering = partial(SafetensorsFolder(files.path).integers, family.names.ordering)
    return spec, family.names, open_checkpoint(files.path, "bf16"), ordering
