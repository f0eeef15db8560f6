"""Decides whether transformers can run an architecture that has no family, and describes its sizes.

Imports transformers inside functions only, because a server of known families does not need it.
Never runs code from a model's folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from penstock.base.errors import ModelError
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.families.registry import is_known_folder, spec_of_folder
from penstock.quant.json_file import read_json

# Their frequencies depend on the longest position of a step, so a batch would change the answers.
_VARYING_ROPES: Final = {"dynamic", "longrope"}
_PLAIN_LAYERS: Final = {"full_attention", "sliding_attention", "attention"}
_INSTALL: Final = "pip install 'penstock[torch]' installs transformers, which may run it"


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """A model that runs on the modules of transformers.

    - `architecture`: the name of the class of transformers.
    - `model_class`, `config`: that class, and the config that it takes.
    - `spec`: the sizes of its layers and caches; the rest of it is not used.
    """

    architecture: str
    model_class: Any
    config: Any
    spec: DecoderSpec


def unknown_architecture(folder: Path) -> ModelError | None:
    """Return the error of the registry if no family has the architecture of `folder`, else None."""
    if is_known_folder(folder):
        return None
    try:
        spec_of_folder(folder)
    except ModelError as refusal:
        return refusal
    return None


def foreign_model(folder: Path, refusal: ModelError) -> ForeignModel:
    """Return the model of transformers for a folder that the families refused with `refusal`.

    Raises `refusal` if transformers does not know the architecture, and ModelError naming the
    cause if the extra is not installed or the modules cannot use the paged KV cache.
    """
    path = folder / "config.json"
    keys = read_json(path, dict[str, Any])
    model_type = keys.get("model_type")
    if not isinstance(model_type, str):
        raise refusal
    if keys.get("auto_map"):
        raise ModelError(
            f"{path}: model_type {model_type!r} has no implementation here, and auto_map names code"
            " in the model's folder, which is never run"
        )
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise ModelError(f"{refusal}; {_INSTALL}")
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    known = model_type in CONFIG_MAPPING
    config_class: Any = CONFIG_MAPPING[model_type] if known else None
    if config_class is None or config_class not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise refusal
    try:
        config = config_class.from_dict(keys)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: transformers refuses it: {error}") from None
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    architecture = str(model_class.__name__)
    names = keys.get("architectures") or [architecture]
    if architecture not in names:
        raise _refused(path, str(names[0]), f"transformers generates text with {architecture} only")
    _check(architecture, model_class, config, path)
    return ForeignModel(architecture, model_class, config, _spec(architecture, config, path))


def _check(architecture: str, model_class: Any, config: Any, path: Path) -> None:
    """Raise ModelError unless every layer is plain attention behind transformers' interface."""
    if getattr(config, "is_encoder_decoder", False):
        raise _refused(path, architecture, "it is an encoder-decoder model")
    if getattr(model_class, "_is_stateful", False):
        raise _refused(path, architecture, "it has recurrent layers")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise _refused(path, architecture, "its modules bypass transformers' attention interface")
    kinds = set(getattr(config, "layer_types", None) or ()) - _PLAIN_LAYERS
    if kinds:
        raise _refused(path, architecture, f"it has layers of type {', '.join(sorted(kinds))}")
    ropes = set(_rope_types(config)) & _VARYING_ROPES
    if ropes:
        raise _refused(path, architecture, f"its rope_type is {', '.join(sorted(ropes))}")
    if (path.parent / "adapter_config.json").exists():
        raise _refused(path, architecture, "adapter_config.json marks the folder as an adapter")
    if getattr(config, "quantization_config", None) is not None:
        raise _refused(path, architecture, "its weights are quantized (quantization_config)")


def _rope_types(config: Any) -> Iterator[str]:
    """Yield the types of rope of a config, which may have one for each type of layer."""
    rope = getattr(config, "rope_parameters", None)
    for one in [rope, *rope.values()] if isinstance(rope, dict) else []:
        if isinstance(one, dict) and isinstance(one.get("rope_type"), str):
            yield one["rope_type"]


def _refused(path: Path, architecture: str, cause: str) -> ModelError:
    return ModelError(
        f"{path}: {architecture} has no implementation here, and cannot run on the modules of"
        f" transformers: {cause}"
    )


def _spec(architecture: str, config: Any, path: Path) -> DecoderSpec:
    try:
        heads, width = int(config.num_attention_heads), int(config.hidden_size)
        head_dim = int(getattr(config, "head_dim", None) or width // heads)
        spec = DecoderSpec(
            architecture=architecture,
            hidden_size=width,
            num_heads=heads,
            num_kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=head_dim,
            intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * width),
            vocab_size=int(config.vocab_size),
            norm_eps=1e-5,
            rope=RopeSpec(theta=10000.0, rotary_dim=head_dim),
            layers=(LayerSpec(),) * int(config.num_hidden_layers),
            max_model_len=int(config.max_position_embeddings),
        )
    except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise _refused(path, architecture, f"its sizes cannot be read: {error}") from None
    sizes = (spec.hidden_size, spec.head_dim, spec.vocab_size, spec.max_model_len)
    if min(*sizes, spec.num_kv_heads, len(spec.layers)) < 1:
        raise _refused(path, architecture, "a size in its config.json is not positive")
    return spec
