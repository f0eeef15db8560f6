"""Quantizes a model to a file or folder, and measures what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import _native
from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.quant.encode.recipes import RECIPES, Recipe, parse_recipe
from penstock.quant.encode.type_names import ENCODED
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.importance import ImportanceMatrix
from penstock.quantizing.folder_output import write_folder
from penstock.quantizing.folder_plan import (
    FOLDER_RULE_TYPES,
    FolderPlan,
    FolderSource,
    plan_folder,
)
from penstock.quantizing.folder_source import FolderAsGguf
from penstock.quantizing.gguf_output import Progress, write_gguf
from penstock.quantizing.partial_file import refuse_to_overwrite
from penstock.quantizing.quality import Scorer, compare, text_tokens
from penstock.quantizing.report import Report, describe, describe_folder
from penstock.quantizing.sources import GgufSource, Source
from penstock.quantizing.type_plan import PlannedTensor, Rule, plan_types


@dataclass(frozen=True, slots=True)
class Job:
    """A model to be quantized.

    - `output`: a name that ends in .gguf, or the name of a folder.
    - `type_name`: the name of a recipe; for a folder, one of FOLDER_TYPES.
    - `rules`: types that come before those of the recipe.
    - `importance`: what each column counts, or None.
    """

    files: ModelFiles
    output: Path
    type_name: str
    rules: Sequence[Rule] = ()
    importance: ImportanceMatrix | None = None
    threads: int = 1


def check_job(job: Job) -> None:
    """Check everything that is known before the importances are: raises ModelError if the type does
    not fit the output, the source cannot be read, a rule matches nothing, or the output exists."""
    refuse_to_overwrite(job.output)
    if job.output.suffix == ".gguf":
        _planned_gguf(job)
    else:
        _planned_folder(job)


def quantize_model(job: Job, progress: Progress) -> Report:
    """Write the quantized model. Raises ModelError as `check_job` does, and if the importances are
    of another model or the output cannot be written."""
    refuse_to_overwrite(job.output)
    if job.output.suffix == ".gguf":
        return _quantize_to_gguf(job, progress)
    return _quantize_to_folder(job, progress)


def _quantize_to_gguf(job: Job, progress: Progress) -> Report:
    source, recipe, planned = _planned_gguf(job)
    pool = _native.ThreadPool(job.threads)
    size = write_gguf(job.output, source, planned, recipe, job.importance, pool, progress)
    return describe(source, planned, size, job.importance)


def _planned_gguf(job: Job) -> tuple[Source, Recipe, list[PlannedTensor]]:
    recipe = _recipe(job.type_name)
    source = open_source(job.files)
    return source, recipe, plan_types(source.tensors, recipe, job.rules)


def _quantize_to_folder(job: Job, progress: Progress) -> Report:
    source, plan = _planned_folder(job)
    importance = None if job.importance is None else source.importance(job.importance)
    pool = _native.ThreadPool(job.threads)
    size = write_folder(job.output, source, plan, pool, progress, importance or {})
    return describe_folder(source, plan, size, importance)


def _planned_folder(job: Job) -> tuple[FolderSource, FolderPlan]:
    if job.files.kind != "folder":
        raise ModelError(f"{job.files.path}: a folder is made from a folder of safetensors")
    source = FolderSource(job.files.path)
    return source, plan_folder(source, job.type_name, job.rules)


def rule_types(output: Path) -> Sequence[str]:
    """Return the types that rules for an output may name."""
    return ENCODED if output.suffix == ".gguf" else FOLDER_RULE_TYPES


def open_source(files: ModelFiles) -> Source:
    """Open the weights of a model. Raises ModelError for a model that cannot be a source."""
    if files.kind == "gguf":
        return GgufSource(GgufFile(files.path))
    if files.kind != "folder":
        raise ModelError(f"{files.path}: is no model that generates text")
    return FolderAsGguf(files)


def _recipe(name: str) -> Recipe:
    recipe = parse_recipe(name)
    if recipe is None:
        raise ModelError(f"type {name!r}: must be one of {', '.join(RECIPES)}")
    return recipe


def measured(report: Report, job: Job, text: str, chunks: int, progress: Progress) -> Report:
    """Return the report with the loss of the output against the source over a text. Raises
    ModelError if the text is too short or a model cannot be computed."""
    tokens = text_tokens(job.files.path, text, chunks)
    base = Scorer(job.files.path, "f32", "f32", job.threads)
    model = Scorer(job.output, "auto", "f16", job.threads)
    return replace(report, quality=compare(base, model, tokens, progress))
