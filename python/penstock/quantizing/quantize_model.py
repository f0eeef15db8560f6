"""Quantizes a model to a file or folder, and measures what was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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


Work = Callable[[ImportanceMatrix | None, Progress], Report]
"""Writes a prepared model with importances, or without. Raises ModelError if these are of another
model or the output cannot be written."""


def prepare(job: Job) -> Work:
    """Open the source and decide the types: all that is known before the importances, which are not
    those of the job. Raises ModelError if the type does not fit the output, the source cannot be
    read, a rule matches nothing, or the output exists."""
    refuse_to_overwrite(job.output)
    pool = _native.ThreadPool(job.threads)
    if job.output.suffix == ".gguf":
        recipe = _recipe(job.type_name)
        source = open_source(job.files)
        planned = plan_types(source.tensors, recipe, job.rules)
        return partial(_write_gguf, job.output, source, recipe, planned, pool)
    if job.files.kind != "folder":
        raise ModelError(f"{job.files.path}: a folder is made from a folder of safetensors")
    folder = FolderSource(job.files.path)
    plan = plan_folder(folder, job.type_name, job.rules)
    return partial(_write_folder, job.output, folder, plan, pool)


def quantize_model(job: Job, progress: Progress) -> Report:
    """Write the quantized model with the importances of the job. Raises ModelError as `prepare` and
    its work do."""
    return prepare(job)(job.importance, progress)


def _write_gguf(
    path: Path,
    source: Source,
    recipe: Recipe,
    planned: Sequence[PlannedTensor],
    pool: _native.ThreadPool,
    importance: ImportanceMatrix | None,
    progress: Progress,
) -> Report:
    size = write_gguf(path, source, planned, recipe, importance, pool, progress)
    return describe(source, planned, size, importance)


def _write_folder(
    path: Path,
    source: FolderSource,
    plan: FolderPlan,
    pool: _native.ThreadPool,
    importance: ImportanceMatrix | None,
    progress: Progress,
) -> Report:
    own = None if importance is None else source.importance(importance)
    size = write_folder(path, source, plan, pool, progress, own or {})
    return describe_folder(source, plan, size, own)


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
