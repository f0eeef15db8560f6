"""Reads the sentence-transformers files of a folder, which define how a text becomes a vector.

`modules.json` lists the modules: a transformer, pooling, optional linear layers and an optional
normalization. Unsupported modules are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import msgspec

from penstock.base.errors import ModelError
from penstock.quant.json_file import read_json

Pooling: TypeAlias = Literal["mean", "cls", "last"]

MODULES = "modules.json"
MAX_MODULES = 16
POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Module type -> the files that the module needs.
MODULE_FILES = {"Pooling": ("config.json",), "Dense": ("config.json", "model.safetensors")}
# The keys of older folders -> pooling, including poolings that are not supported.
POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class PoolerSpec:
    """The steps that turn token states into an embedding vector.

    - `pooling`: the mean over all tokens, or the state of the first ("cls") or of the last token.
    - `normalize`: the vector is scaled to length 1.
    - `dense`: the folders of the linear layers after pooling.
    - `max_tokens`: the maximum sequence length; None: the model's context length.
    - `prompt`: precedes every text.
    - `lower_case`: prompt and text are lowercased.
    - `templated`: the chat template renders every input, with `prompt` as the system's message.
    """

    pooling: Pooling = "mean"
    normalize: bool = False
    dense: tuple[Path, ...] = ()
    max_tokens: int | None = None
    prompt: str = ""
    lower_case: bool = False
    templated: bool = False


class _Module(msgspec.Struct):
    type: str
    path: str = ""


class _PoolingConfig(msgspec.Struct):
    pooling_mode: str | list[str] | None = None
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False
    include_prompt: bool = True


class _TransformerConfig(msgspec.Struct):
    max_seq_length: int | None = None
    do_lower_case: bool | None = None
    modality_config: dict[str, Any] = {}
    processing_kwargs: dict[str, dict[str, Any]] = {}

    @property
    def templated(self) -> bool:
        """Whether all inputs become messages, which the chat template renders."""
        return "message" in self.modality_config


class _PromptConfig(msgspec.Struct):
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None


def is_sentence_transformers_folder(folder: Path) -> bool:
    """Return whether the folder was written by sentence-transformers."""
    return (folder / MODULES).is_file()


def pooler_spec(folder: Path) -> PoolerSpec:
    """Read the pooling steps of a folder. Without sentence-transformers files, the pooling is the
    mean over all tokens. Raises ModelError naming file and key."""
    if not is_sentence_transformers_folder(folder):
        return PoolerSpec()
    modules = read_json(folder / MODULES, list[_Module])
    kinds = [module.type.rpartition(".")[2] for module in modules]
    wanted = ["Transformer", "Pooling", *["Dense"] * kinds.count("Dense")]
    normalize = kinds[-1:] == ["Normalize"]
    if kinds != wanted + ["Normalize"] * normalize or len(kinds) > MAX_MODULES:
        raise ModelError(f"{folder / MODULES}: {', '.join(kinds)} is not supported")
    paths = [_inside(folder, module.path) for module in modules]
    pooling, config = _pooling(paths[1] / "config.json", normalize and "Dense" not in kinds)
    prompt = _prompt(folder)
    if prompt and not config.include_prompt:
        raise ModelError(f"{paths[1]}: include_prompt false is not supported")
    transformer = _transformer(paths[0])
    return PoolerSpec(
        pooling=pooling,
        normalize=normalize,
        dense=tuple(p for p, kind in zip(paths, kinds, strict=True) if kind == "Dense"),
        max_tokens=transformer.max_seq_length,
        prompt=prompt,
        lower_case=bool(transformer.do_lower_case),
        templated=transformer.templated,
    )


def module_files(folder: Path) -> list[str]:
    """Return the files in subfolders that the modules need, as paths relative to `folder`. Raises
    ModelError for an invalid modules.json."""
    if not is_sentence_transformers_folder(folder):
        return []
    files = []
    for module in read_json(folder / MODULES, list[_Module]):
        path = _inside(folder, module.path).relative_to(folder)
        names = MODULE_FILES.get(module.type.rpartition(".")[2], ()) if path.name else ()
        files += [str(path / name) for name in names]
    return files


def _inside(folder: Path, path: str) -> Path:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/") or "\0" in path:
        raise ModelError(f"{folder / MODULES}: path {path!r} is outside the folder")
    return folder.joinpath(*parts)


def _pooling(path: Path, is_normalized: bool) -> tuple[Pooling, _PoolingConfig]:
    """Read the config of the pooling module and return the pooling. `is_normalized`: the next
    module normalizes, so that `mean_sqrt_len` gives the same vector as `mean`. Raises ModelError
    for a pooling that is not supported."""
    config = read_json(path, _PoolingConfig)
    if config.pooling_mode is not None:
        mode = config.pooling_mode
        modes = [mode] if isinstance(mode, str) else mode
    else:
        modes = [name for key, name in POOLING_KEYS.items() if getattr(config, key)]
    if modes == ["mean_sqrt_len"] and is_normalized:
        modes = ["mean"]
    pooling = POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        asked = " and ".join(modes) or "nothing"
        known = ", ".join(POOLINGS)
        raise ModelError(f"{path}: pooling by {asked} is not supported, known are {known}")
    return pooling, config


def _transformer(folder: Path) -> _TransformerConfig:
    path = folder / "sentence_bert_config.json"
    config = read_json(path, _TransformerConfig) if path.exists() else _TransformerConfig()
    length = config.max_seq_length
    if length is not None and length < 1:
        raise ModelError(f"{path}: max_seq_length {length} is not positive")
    template = config.processing_kwargs.get("chat_template", {})
    if config.templated and template.get("add_generation_prompt") is not True:
        raise ModelError(
            f"{path}: processing_kwargs: chat_template: add_generation_prompt must be true"
        )
    return config


def _prompt(folder: Path) -> str:
    path = folder / "config_sentence_transformers.json"
    config = read_json(path, _PromptConfig) if path.exists() else _PromptConfig()
    if config.default_prompt_name is None:
        return ""
    if config.default_prompt_name not in config.prompts:
        name = config.default_prompt_name
        raise ModelError(f"{path}: default_prompt_name {name!r} is not one of the prompts")
    return config.prompts[config.default_prompt_name]
