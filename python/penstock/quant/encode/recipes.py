"""Recipes: the type of each tensor of a model, by its part in the model and the place of its layer.

The names and mixtures are those that llama.cpp's users know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from penstock.quant.encode.type_names import FLOATS, squeezed

Part = Literal["embedding", "head", "v", "output", "down", "other"]

# Tensors of which few bits would cost more answers than bytes, or that are no matrix products:
# norms, routers, convolutions, positions, the narrow gates of recurrent layers, per-layer scales.
KEPT: Final = re.compile(
    r"norm|ffn_gate_inp|ffn_exp_probs|ssm_(conv1d|alpha|beta|ba|dt|x|a|d)\.|shortconv\.conv\."
    r"|time_mix|position|token_types|altup|laurel|per_layer_(model_)?proj|inp_gate"
    r"|^blk\.\d+\.proj\.weight$|rope_|attn_rel|mlp\.gate\.|router|conv1d"
)

_PARTS: Final = (
    ("embedding", re.compile(r"^token_embd\.|embed_tokens\.")),
    ("head", re.compile(r"^output\.weight|^lm_head\.")),
    ("v", re.compile(r"attn_v\.|attn_qkv\.|attn_kv_b\.|v_proj\.|qkv_proj\.")),
    ("output", re.compile(r"attn_output\.|o_proj\.")),
    ("down", re.compile(r"ffn_down|down_proj")),
)
_LAYER: Final = re.compile(r"(?:blk|layers)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Place:
    """The part and the layer of a tensor: layer `index` of `count`."""

    part: Part
    index: int
    count: int


def place_of(name: str, num_layers: int) -> Place:
    """Return the place of a tensor, from its name in a GGUF file or in a folder."""
    layer = _LAYER.search(name)
    parts: list[Part] = [part for part, pattern in _PARTS if pattern.search(name)]  # type: ignore[misc]
    return Place(parts[0] if parts else "other", int(layer[1]) if layer else 0, num_layers)


def _all(place: Place) -> bool:
    return True


def _first_eighth(place: Place) -> bool:
    return place.index < place.count // 8


def _outer_and_thirds(place: Place) -> bool:
    """The first and the last eighth of the layers, and every third between."""
    eighth = place.count // 8
    outer = place.index < eighth or place.index >= 7 * place.count // 8
    return outer or (place.index - eighth) % 3 == 2


def _first(number: int) -> Callable[[Place], bool]:
    return lambda place: place.index < number


Choice = tuple[Callable[[Place], bool], str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The types of a model's matrices.

    - `base`: the type of those that no choice names.
    - `choices`: part -> (condition, type), of which the first that holds decides.
    - `head`: the type of the head, and of an embedding that is the head.
    - `file_type`: llama.cpp's number of the mixture, `general.file_type`.
    """

    name: str
    base: str
    file_type: int
    head: str = "Q6_K"
    choices: Mapping[Part, tuple[Choice, ...]] = field(default_factory=dict)

    def type_of(self, place: Place, tied: bool) -> str:
        """Return the type of a tensor. `tied`: the embedding is also the head."""
        if place.part == "head" or (place.part == "embedding" and tied):
            return self.head
        for holds, type_name in self.choices.get(place.part, ()):
            if holds(place):
                return type_name
        return self.base


def _alike(name: str, file_type: int) -> Recipe:
    """Return the recipe with one type for all, except that the head has at least 6 bits."""
    own_head = name in (*FLOATS, "Q8_0")
    return Recipe(name, name, file_type, name if own_head else "Q6_K")


def _more_bits(name: str, base: str, file_type: int, **parts: tuple[Choice, ...]) -> Recipe:
    return Recipe(name, base, file_type, "Q6_K", parts)  # type: ignore[arg-type]


_RECIPES: Final = (
    *(
        _alike(name, number)
        for name, number in {
            "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q6_K": 18,
            "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32, "MXFP4": 38,
        }.items()
    ),
    _more_bits(
        "Q2_K", "Q2_K", 10,
        v=((_all, "Q4_K"),), output=((_all, "Q3_K"),), down=((_all, "Q3_K"),),
    ),
    _more_bits("Q3_K_S", "Q3_K", 11),
    _more_bits(
        "Q3_K_M", "Q3_K", 12,
        v=((_first(2), "Q5_K"), (_all, "Q4_K")),
        output=((_all, "Q4_K"),),
        down=((_first_eighth, "Q5_K"), (_outer_and_thirds, "Q4_K")),
    ),
    _more_bits(
        "Q3_K_L", "Q3_K", 13,
        v=((_all, "Q5_K"),), output=((_all, "Q5_K"),), down=((_all, "Q5_K"),),
    ),
    _more_bits(
        "Q4_K_S", "Q4_K", 14, v=((_first(4), "Q5_K"),), down=((_first_eighth, "Q5_K"),)
    ),
    _more_bits(
        "Q4_K_M", "Q4_K", 15,
        v=((_outer_and_thirds, "Q6_K"),), down=((_outer_and_thirds, "Q6_K"),),
    ),
    _more_bits("Q5_K_S", "Q5_K", 16),
    _more_bits(
        "Q5_K_M", "Q5_K", 17,
        v=((_outer_and_thirds, "Q6_K"),), down=((_outer_and_thirds, "Q6_K"),),
    ),
)  # fmt: skip

RECIPES: Final = {recipe.name: recipe for recipe in _RECIPES}
"""The recipes by name."""

_BY_SPELLING: Final = {squeezed(name): recipe for name, recipe in RECIPES.items()} | {
    squeezed(short): RECIPES[name]
    for short, name in {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}.items()
}


def parse_recipe(text: str) -> Recipe | None:
    """Return the recipe that `text` means, or None. As in llama.cpp, "q4_k" means Q4_K_M."""
    return _BY_SPELLING.get(squeezed(text))
