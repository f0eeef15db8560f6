"""A decoder with the embeddings of images in its prompt gives the logits of `transformers`: three
positions per token, states added after the first layers, images that see themselves whole."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from test_text_backbones import CASES, MROPE, QWEN_TOKENS, QWEN_VISION, build
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from penstock import _native
from penstock.kernels.cases.random_inputs import map_leaves
from penstock.kernels.native import NativeOps, plan_arguments
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.step_inputs import LayerCache, MediaRows, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.rope import chunked_axes, interleaved_axes
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model

BLOCK_TOKENS, BLOCKS, ROOM = 16, 12, 40  # rows of the staging buffers, more than a step needs
WIDTH = 64
TOKENS = [3, 17, 5, *[0] * 12, 9, 44, *[0] * 6, 8, 12, 50, 23]
IMAGES = ((3, 12), (17, 6))  # first token and number of tokens
GRIDS = ((3, 4), (2, 3))
MODELS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Gemma3")

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Prompt:
    """A prompt with images: tokens [T], embeddings [M, W] and states of the first layers, and what
    the runtime would compute from the images' places."""

    rows: npt.NDArray[np.float32]
    deep: tuple[npt.NDArray[np.float32], ...]
    index: Ints
    positions: Ints  # [3, T]
    visible: Ints


def prompt_of(num_deep: int) -> Prompt:
    """Return the prompt `TOKENS`. Rows of the images are scattered in the buffers."""
    random = np.random.default_rng(3)
    count = len(TOKENS)
    index, visible = np.full(count, -1), np.arange(count) + 1
    positions: list[tuple[int, int, int]] = []
    places = random.permutation(ROOM)
    for (start, length), (height, width) in zip(IMAGES, GRIDS, strict=True):
        base = max(map(max, positions), default=-1) + 1
        positions += [(base + i,) * 3 for i in range(start - len(positions))]
        base = max(map(max, positions)) + 1
        positions += [(base, base + row, base + i) for row in range(height) for i in range(width)]
        index[start : start + length], places = places[:length], places[length:]
        visible[start : start + length] = start + length
    base = max(map(max, positions)) + 1
    positions += [(base + i,) * 3 for i in range(count - len(positions))]
    rows, *deep = random.normal(0, 1, (1 + num_deep, ROOM, WIDTH)).astype(np.float32)
    return Prompt(
        rows,
        tuple(deep),
        index.astype(np.int32),
        np.array(positions, np.int32).T.copy(),
        visible.astype(np.int32),
    )


def step_inputs(first: int, last: int, rope: Ints | None = None) -> StepInputs[Ints]:
    """Return the step of tokens `first` to `last` of the one sequence; all are sampled."""
    place = np.arange(first, last, dtype=np.int32)
    return StepInputs(
        tokens=np.array(TOKENS, np.int32)[first:last],
        positions=place if rope is None else rope[first:last],
        slots=place + 2 * BLOCK_TOKENS,
        query_starts=np.array([0, last - first], np.int32),
        context_lens=np.array([last], np.int32),
        block_tables=np.arange(2, BLOCKS, dtype=np.int32)[None],
        sample_rows=np.arange(last - first, dtype=np.int32),
    )


def media_of(name: str, prompt: Prompt, first: int, last: int) -> MediaRows[Any]:
    tokens = slice(first, last)
    media: MediaRows[Any] = MediaRows(prompt.index[tokens], prompt.rows, prompt.deep)
    if name == "Gemma3":
        return replace(media, visible=prompt.visible[tokens])
    positions = tuple(np.ascontiguousarray(axis[tokens]) for axis in prompt.positions)
    rows = np.arange(last - first, dtype=np.int32)
    return replace(media, rope_positions=positions, rope_rows=rows)


def caches_of(decoder: Decoder[Any]) -> list[LayerCache[Any]]:
    spec = decoder.spec
    shape = (BLOCKS, spec.num_kv_heads)
    return [
        LayerCache(
            np.zeros((*shape, spec.head_dim, BLOCK_TOKENS), np.float32),
            np.zeros((*shape, BLOCK_TOKENS, spec.head_dim), np.float32),
        )
        for _ in spec.layers
    ]


@torch.no_grad()
def expected(model: Any, name: str, prompt: Prompt) -> torch.Tensor:
    """Return the logits [T, V] of transformers' language model."""
    inner = model.model.language_model
    index = torch.from_numpy(prompt.index).long()
    x = inner.embed_tokens(torch.tensor([TOKENS]))
    x[0, index >= 0] = torch.from_numpy(prompt.rows)[index[index >= 0]]
    if name == "Gemma3":
        block = torch.full((1, len(TOKENS)), -1)
        for number, (start, length) in enumerate(IMAGES):
            block[0, start : start + length] = number
        masks = {
            kind: make(inner.config, x, None, None, torch.arange(len(TOKENS))[None],
                       block_sequence_ids=block)
            for kind, make in (
                ("full_attention", create_causal_mask),
                ("sliding_attention", create_sliding_window_causal_mask),
            )
        }  # fmt: skip
        states = inner(inputs_embeds=x, attention_mask=masks).last_hidden_state
    else:
        positions = torch.from_numpy(prompt.positions).long()[:, None]
        extra = {}
        if prompt.deep:
            picked = index[index >= 0]
            extra["deepstack_visual_embeds"] = [torch.from_numpy(d)[picked] for d in prompt.deep]
            extra["visual_pos_masks"] = (index >= 0)[None]
        states = inner(inputs_embeds=x, position_ids=positions, **extra).last_hidden_state
    return model.lm_head(states)[0]


def saved(name: str, folder: Path, **vision: Any) -> Any:
    text, own_vision, whole = CASES[name]
    CASES[name] = (text, own_vision | vision, whole)
    try:
        model = build(name)
    finally:
        CASES[name] = (text, own_vision, whole)
    model.save_pretrained(folder)
    return model


def native_decoder(folder: Path) -> tuple[Decoder[Any], NativeOps]:
    loaded = load_model(ModelFiles("test", "folder", folder), "auto")
    ops = NativeOps.eager(_native.ThreadPool(2))
    return Decoder(loaded.spec, loaded.weights, ops, max_model_len=128), ops


def num_deep_of(name: str) -> int:
    return 2 if name == "Qwen3VL" else 0


@pytest.mark.parametrize("name", MODELS)
def test_reference_ops_give_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model, prompt = saved(name, tmp_path), prompt_of(num_deep_of(name))
    loaded = load_model(ModelFiles("test", "folder", tmp_path), "auto")
    ops = ReferenceOps()
    decoder = Decoder(loaded.spec, loaded.weights, ops, max_model_len=128)
    inputs = step_inputs(0, len(TOKENS))
    inputs = replace(inputs, media=media_of(name, prompt, 0, len(TOKENS)))
    torch_inputs, caches = (
        map_leaves(value, np.ndarray, torch.from_numpy)
        for value in (inputs, tuple(caches_of(decoder)))
    )
    logits = decoder.forward(ops, torch_inputs, list(caches))
    torch.testing.assert_close(logits, expected(model, name, prompt), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_gives_these_logits_in_any_chunks(name: str, tmp_path: Path) -> None:
    """Chunks end between images, and the last tokens are decoded by a plan without media, whose
    positions continue after the largest one."""
    model, prompt = saved(name, tmp_path), prompt_of(num_deep_of(name))
    decoder, ops = native_decoder(tmp_path)
    cuts = (0, 16, 24, len(TOKENS))
    results = []
    for chunks in ([(0, len(TOKENS))], list(itertools.pairwise(cuts))):
        caches = caches_of(decoder)
        sizes = (len(TOKENS), 2, len(TOKENS), BLOCKS - 2)
        with_media = ops.recorder(*sizes, media=media_of(name, prompt, 0, 1))
        plan = with_media.finish(decoder.forward(with_media, with_media.inputs, caches))
        without = ops.recorder(*sizes)
        plain = without.finish(decoder.forward(without, without.inputs, caches))
        logits = []
        for first, last in chunks:
            if (prompt.index[first:last] >= 0).any():
                inputs = step_inputs(first, last)
                inputs = replace(inputs, media=media_of(name, prompt, first, last))
                logits.append(np.array(plan.run(*plan_arguments(inputs))))
            else:
                rope = None if name == "Gemma3" else prompt.positions[0]
                inputs = step_inputs(first, last, rope)
                logits.append(np.array(plain.run(*plan_arguments(inputs))))
        results.append(np.concatenate(logits))
    np.testing.assert_array_equal(results[0], results[1])
    truth = expected(model, name, prompt)
    torch.testing.assert_close(torch.from_numpy(results[0]), truth, atol=1e-3, rtol=1e-3)


def test_media_of_every_layer_are_added_before_rows_are_dropped(tmp_path: Path) -> None:
    """A model may have as many DeepStack layers as decoder layers."""
    model, prompt = saved("Qwen3VL", tmp_path), prompt_of(3)
    decoder, ops = native_decoder(tmp_path)
    inputs = replace(step_inputs(0, len(TOKENS)), media=media_of("Qwen3VL", prompt, 0, len(TOKENS)))
    few = replace(inputs, sample_rows=np.array([20, 4], np.int32))
    logits = decoder.forward(ops, few, caches_of(decoder))
    truth = expected(model, "Qwen3VL", prompt)[[20, 4]]
    torch.testing.assert_close(torch.from_numpy(logits), truth, atol=1e-3, rtol=1e-3)


def test_text_in_a_step_with_media_has_the_bits_of_a_step_without(tmp_path: Path) -> None:
    saved("Qwen3VL", tmp_path)
    decoder, ops = native_decoder(tmp_path)
    prompt = prompt_of(2)
    inputs = step_inputs(0, 20)
    places = np.arange(20, dtype=np.int32)
    media = media_of("Qwen3VL", prompt, 0, 20)
    media = replace(media, index=np.full(20, -1, np.int32), rope_positions=(places,) * 3)
    plain = decoder.forward(ops, inputs, caches_of(decoder))
    with_media = decoder.forward(ops, replace(inputs, media=media), caches_of(decoder))
    np.testing.assert_array_equal(plain, with_media)


def test_a_plan_refuses_rows_outside_the_buffers_and_media_it_does_not_know(
    tmp_path: Path,
) -> None:
    saved("Gemma3", tmp_path)
    decoder, ops = native_decoder(tmp_path)
    prompt = prompt_of(0)
    media = media_of("Gemma3", prompt, 0, len(TOKENS))
    recorder = ops.recorder(len(TOKENS), 2, len(TOKENS), BLOCKS - 2, media=media)
    plan = recorder.finish(decoder.forward(recorder, recorder.inputs, caches_of(decoder)))
    inputs = replace(step_inputs(0, len(TOKENS)), media=media)
    plan.run(*plan_arguments(inputs))

    def refused(**changes: Any) -> Any:
        return plan_arguments(replace(inputs, media=replace(media, **changes)))

    index, visible = media.index.copy(), prompt.visible.copy()
    index[4] = ROOM
    with pytest.raises(ValueError, match=f"media_index: {ROOM} is not below {ROOM}"):
        plan.run(*refused(index=index))
    visible[6] = 4
    with pytest.raises(ValueError, match=r"media_visible\[6\]: 4 is not in 15..27"):
        plan.run(*refused(visible=visible))
    visible[6:] = len(TOKENS) + 1
    with pytest.raises(ValueError, match=r"media_visible\[6\]: 28 is not in 15..27"):
        plan.run(*refused(visible=visible))
    with pytest.raises(ValueError, match="recorded with media_index, media_visible, got 1 arrays"):
        plan.run(*refused(visible=None))


def test_axes_of_pairs() -> None:
    assert chunked_axes((1, 2, 3)) == (0, 1, 1, 2, 2, 2)
    assert interleaved_axes((4, 2, 2)) == (0, 1, 2, 0, 1, 2, 0, 0)
    assert interleaved_axes((2, 3, 3)) == (0, 1, 2, 0, 1, 2, 0, 1)


@pytest.mark.parametrize(
    ("keys", "axes"),
    [
        ({"mrope_interleaved": False}, chunked_axes((2, 3, 3))),
        ({}, interleaved_axes((2, 3, 3))),
    ],
)
def test_configs_say_which_pairs_turn_by_which_axis(
    keys: dict[str, bool], axes: tuple[int, ...], tmp_path: Path
) -> None:
    rope = MROPE["rope_parameters"] | keys
    previous = CASES["Qwen3VL"]
    CASES["Qwen3VL"] = ({"rope_parameters": rope}, QWEN_VISION, QWEN_TOKENS)
    try:
        build("Qwen3VL").save_pretrained(tmp_path)
    finally:
        CASES["Qwen3VL"] = previous
    assert load_model(ModelFiles("test", "folder", tmp_path), "auto").spec.rope.axes == axes
