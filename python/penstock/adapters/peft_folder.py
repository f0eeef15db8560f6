"""Reads a PEFT folder (adapter_config.json and adapter_model.safetensors) as an Adapter.

The header of the weight file is first checked against the config, the base model and the limits.
Then the data are read once, checked to be finite, and B is multiplied by the scale.

The rows of modules have the order of the trained model. They are brought into the order of the
decoder's weights and multiplied by the same factors (`models.decoder.lora_block`). An adapter fits
any file format and quantization of its base model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.adapters.adapter import Adapter, Factors
from penstock.adapters.errors import AdapterRefused, invalid_adapter
from penstock.adapters.peft_config import (
    CONFIG_NAME,
    MAX_CONFIG_BYTES,
    WEIGHTS_NAME,
    PeftConfig,
)
from penstock.adapters.tensor_keys import FactorKey, factor_key, shown, unexpected
from penstock.base.errors import ModelError
from penstock.config import LoraSettings
from penstock.models.decoder.lora_block import LoraBlock, LoraTarget
from penstock.models.decoder.lora_targets import lora_blocks, why_no_target
from penstock.models.decoder.spec import DecoderSpec
from penstock.quant.checkpoint import TensorInfo
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.safetensors_file import FLOATS, SafetensorsFile, read_header

FLOAT_BYTES: Final = 4

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Module:
    """A module in the weight file, with both factors. `rows`: the number of rows of each part of
    `target`."""

    name: str
    layer: int
    target: LoraTarget
    rows: tuple[int, ...]
    a: TensorInfo
    b: TensorInfo

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def size_bytes(self) -> int:
        """The size of the factors of all parts in float32, each part with its own copy of A."""
        columns = self.a.shape[1]
        return FLOAT_BYTES * self.rank * (len(self.rows) * columns + sum(self.rows))


def read_adapter(
    folder: Path, spec: DecoderSpec, limits: LoraSettings, revision: str | None = None
) -> Adapter:
    """Read the adapter in `folder` for a base model of `spec`. `revision`: None: the folder's name.

    Raises AdapterRefused: `invalid_lora_adapter` with the key or tensor at fault,
    `lora_rank_limit_exceeded`, `lora_byte_limit_exceeded`, `lora_adapter_file_too_large`,
    `adapter_file_not_found`, `adapter_storage_unavailable`.
    """
    if spec.merged_factors:
        raise invalid_adapter(
            "the weights in the model's file are multiplied by factors that the file does not name;"
            " adapters are supported with the model's folder"
        )
    config = PeftConfig(_read_config(folder / CONFIG_NAME))
    path = folder / WEIGHTS_NAME
    try:
        header, _ = read_header(path)
        modules = _modules(header, config, spec)
        _check_limits(modules, limits)
        factors = _read_factors(SafetensorsFile(path), modules, config)
    except ModelError as error:
        raise invalid_adapter(str(error).replace(str(path), WEIGHTS_NAME)) from None
    layers: list[dict[str, Factors]] = [{} for _ in spec.layers]
    for layer, part, pair in factors:
        if part in layers[layer]:
            raise invalid_adapter(f"layer {layer} has two adapters for its {part} projection")
        layers[layer][part] = pair
    return Adapter(
        revision=folder.name if revision is None else revision,
        rank=max(module.rank for module in modules),
        size_bytes=sum(module.size_bytes for module in modules),
        layers=tuple(layers),
    )


def _read_config(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise AdapterRefused(
            "adapter_file_not_found", f"{CONFIG_NAME} is missing", field="lora_path"
        ) from None
    except OSError:
        raise AdapterRefused(
            "adapter_storage_unavailable", f"{CONFIG_NAME} cannot be read", field="lora_path"
        ) from None


def _modules(
    header: Mapping[str, TensorInfo], config: PeftConfig, spec: DecoderSpec
) -> list[_Module]:
    """Return the modules of the weight file. Raises AdapterRefused naming a tensor that is
    unexpected, missing or of the wrong shape."""
    keys: dict[str, FactorKey] = {}
    names: dict[str, str] = {}
    sides: dict[tuple[str, str], TensorInfo] = {}
    for name, info in header.items():
        key = factor_key(name)
        if (key.module, key.side) in sides:
            raise invalid_adapter(f"tensor {shown(name)} appears twice, under two prefixes")
        keys[key.module], sides[key.module, key.side] = key, info
        names[key.module] = name
    if not keys:
        raise invalid_adapter(f"{WEIGHTS_NAME} has no tensors")
    blocks = lora_blocks(spec)
    modules = []
    for key in keys.values():
        target = _target(key, names[key.module], spec, blocks)
        if not config.targets(key.module, key.layer):
            raise invalid_adapter(
                f"{key.module} is in {WEIGHTS_NAME}, but {CONFIG_NAME} does not target it"
            )
        rank = config.rank(key.module)
        modules.append(_module(key, sides, rank, target, blocks[key.layer]))
    return modules


def _target(
    key: FactorKey, tensor: str, spec: DecoderSpec, blocks: Sequence[LoraBlock]
) -> LoraTarget:
    """Return the target of a module. `tensor`: the name of one of its factors. `blocks`: those of
    all layers. Raises AdapterRefused if the decoder has none."""
    if key.layer >= len(blocks):
        raise invalid_adapter(f"{key.module}: the model has {len(blocks)} layers")
    target = blocks[key.layer].targets.get(key.name)
    if target is not None:
        return target
    reason = why_no_target(spec, blocks, key.layer, key.name)
    raise unexpected(tensor) if reason is None else invalid_adapter(f"{key.module}: {reason}")


def _module(
    key: FactorKey,
    sides: Mapping[tuple[str, str], TensorInfo],
    rank: int,
    target: LoraTarget,
    block: LoraBlock,
) -> _Module:
    """Return a module with its factors. Raises AdapterRefused if one is missing, or if its shape or
    its type is wrong."""
    a, b = sides.get((key.module, "A")), sides.get((key.module, "B"))
    if a is None or b is None:
        raise invalid_adapter(f"{key.module} has only one of lora_A and lora_B")
    rows, columns = block.size(target)
    for info, shape in ((a, (rank, columns)), (b, (sum(rows), rank))):
        if info.shape != shape:
            raise invalid_adapter(
                f"tensor {shown(info.name)} has shape {list(info.shape)}, expected {list(shape)}"
            )
        if info.type_name not in FLOATS:
            raise invalid_adapter(f"tensor {shown(info.name)} has type {info.type_name}")
    return _Module(key.module, key.layer, target, rows, a, b)


def _check_limits(modules: list[_Module], limits: LoraSettings) -> None:
    rank = max(module.rank for module in modules)
    if rank > limits.max_rank:
        raise AdapterRefused(
            "lora_rank_limit_exceeded",
            f"the adapter's rank is {rank}; lora_max_rank is {limits.max_rank}",
            field="lora_path",
        )
    size = sum(module.size_bytes for module in modules) // 2  # an engine may hold 16-bit floats
    if size > limits.max_bytes:
        raise AdapterRefused(
            "lora_byte_limit_exceeded",
            f"the adapter needs at least {size} bytes; lora_max_bytes is {limits.max_bytes}",
            field="lora_path",
        )


def _read_factors(
    file: SafetensorsFile, modules: list[_Module], config: PeftConfig
) -> Iterator[tuple[int, str, Factors]]:
    """Yield (layer, part, factors) for each part of a linear layer that the file changes."""
    for module in modules:
        a, b = _matrix(file, module.a), _matrix(file, module.b)
        with np.errstate(over="ignore"):  # checked below
            b *= np.float32(config.scale(module.name))
            parts = [(placed.part, placed.of(b)) for placed in module.target]
        if not all(np.isfinite(rows).all() for _, rows in parts):
            raise invalid_adapter(f"tensor {shown(module.b.name)} overflows with its scale")
        for part, rows in parts:
            yield module.layer, part, Factors(a, rows)


def _matrix(file: SafetensorsFile, info: TensorInfo) -> Floats:
    """Return a copy of a tensor, so that the file can be unmapped. Raises AdapterRefused if a value
    is not finite."""
    values = np.array(dequantize(file.matrix(info.name)), np.float32, order="C")
    if not np.isfinite(values).all():
        raise invalid_adapter(f"tensor {shown(info.name)} has values that are not finite")
    return values
