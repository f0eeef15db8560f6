"""Sizes of the multimodal models that all engines run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SMOLVLM_TEMPLATE: Final = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'] is string %}{{ ': ' + message['content'] }}{% else %}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
QWEN_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Text:
    """A language model. `width`, `inner`: of states and feed-forward; `vocabulary`: tokens.
    `norms`: whether queries and keys are normalized."""

    architecture: str
    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    theta: float
    eps: float
    norms: bool
    keys: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision tower. `side`: of a tile in pixels; `positions`: rows of the position table;
    `merge`: patches on a side of a token; `deep`: layers of DeepStack."""

    projector: str
    layers: int
    width: int
    inner: int
    heads: int
    patch: int
    side: int
    positions: int
    merge: int
    mean: float
    deep: tuple[int, ...]
    fused: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """A multimodal model. `tokens`: control tokens that follow the vocabulary of the source;
    `least`: layers that the language model cannot do without."""

    text: Text
    tower: Tower
    tokens: tuple[str, ...]
    template: str
    end: str
    least: int


_TILES: Final = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
SHAPES: Final[Mapping[str, Shape]] = {
    "smolvlm-256m": Shape(
        Text("llama", 30, 576, 1536, 9, 3, 64, 49_280, 1e5, 1e-5, False, {}),
        Tower("idefics3", 12, 768, 3072, 12, 16, 512, 1024, 4, 0.5, (), False),
        ("<global-img>", *_TILES, "<fake_token_around_image>", "<image>", "<end_of_utterance>"),
        SMOLVLM_TEMPLATE,
        "<end_of_utterance>",
        1,
    ),
    "qwen3-vl-2b": Shape(
        Text(
            "qwen3vl", 28, 2048, 6144, 16, 8, 128, 151_936, 5e6, 1e-6, True,
            {"n_deepstack_layers": 3, "rope.dimension_sections": [24, 20, 20, 0]},
        ),
        Tower(
            "qwen3vl_merger", 24, 1024, 4096, 16, 16, 768, 2304, 2, 0.5, (5, 11, 17), True
        ),
        ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
        QWEN_TEMPLATE,
        "<|im_end|>",
        3,
    ),
}  # fmt: skip
