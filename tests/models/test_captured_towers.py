"""Image towers whose layers are captured give the rows of towers that compute kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.kernels.reference import ReferenceOps
from penstock.models.media.prepared import PreparedMedia
from penstock.models.towers.piece_budget import PieceBudget
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from penstock.runtime.gpu.tower_graphs import TowerGraphs
from tests.support.emulated_capture import EmulatedCapturer
from tests.support.vision_cases import CASES
from tests.support.vision_models import drained, media_spec, picture, save, small_model

IMAGES = [picture(64, 48, seed) for seed in range(4)]


class Tower:
    """A tower over reference ops whose layers `capturer` captures."""

    def __init__(self, folder: Path, capturer: Any = None, **options: Any) -> None:
        self._spec = media_spec(folder)
        (tower,) = self._spec.towers
        self._ops = ReferenceOps()
        if capturer is not None:
            self._ops.layer_graphs = TowerGraphs(capturer, **options)
        self._tower = tower.open(SafetensorsFolder(folder), "f32").build(self._ops)

    @property
    def stages(self) -> int:
        """The number of captures of a shape: one per layer, and the first queries."""
        return len(self._tower._vision._layers) + 1  # type: ignore[attr-defined]

    def encode(self, pixels: np.ndarray) -> np.ndarray:
        media: PreparedMedia = self._spec.processor.image(pixels)
        with torch.inference_mode():
            encoded, _ = drained(self._tower.encode(self._ops, media, PieceBudget()))
        return encoded.rows.numpy()  # type: ignore[no-any-return]


@pytest.fixture(scope="module", params=["llava", "internvl", "idefics3", "llava with pixtral"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Towers with class tokens and chosen layers, tiles, several groups, and RoPE."""
    case = CASES[request.param]
    model = small_model(case.name, case.text, case.vision, case.whole)
    return save(tmp_path_factory.mktemp("model"), model, case.processor())


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_captured_layers_give_the_rows_of_each_image(folder: Path) -> None:
    capturer = EmulatedCapturer()
    captured, plain = Tower(folder, capturer), Tower(folder)
    for pixels in IMAGES:
        close(captured.encode(pixels), plain.encode(pixels))
    assert capturer.captured % captured.stages == 0 < capturer.captured < capturer.replayed
    assert not np.allclose(captured.encode(IMAGES[0]), captured.encode(IMAGES[1]))


@pytest.fixture(scope="module")
def one_tile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tower whose images have the same number of patches, or others."""
    case = CASES["llava with pixtral"]
    model = small_model(case.name, case.text, case.vision, case.whole)
    return save(tmp_path_factory.mktemp("model"), model, case.processor())


def test_a_shape_is_captured_when_it_occurs_again(one_tile: Path) -> None:
    capturer = EmulatedCapturer()
    tower = Tower(one_tile, capturer)
    counts: list[tuple[int, int]] = []
    for pixels in (IMAGES[0], picture(37, 91), IMAGES[1], picture(37, 91, 5), IMAGES[2]):
        tower.encode(pixels)
        counts.append((capturer.captured, capturer.replayed))
    stages = tower.stages
    assert counts == [
        (0, 0),
        (0, 0),
        (stages, stages),
        (2 * stages, 2 * stages),
        (2 * stages, 3 * stages),
    ]


def captured_bytes(folder: Path) -> int:
    """Return the memory of the captured layers of one image."""
    tower = Tower(folder, EmulatedCapturer())
    for pixels in IMAGES[:2]:
        tower.encode(pixels)
    graphs: Any = tower._ops.layer_graphs
    (made,) = graphs._made.values()
    return int(made.size_bytes)


def test_the_shape_used_least_recently_makes_room(one_tile: Path) -> None:
    capturer = EmulatedCapturer()
    tower = Tower(one_tile, capturer, max_bytes=captured_bytes(one_tile))
    smaller = [picture(37, 45, seed) for seed in range(2)]
    captures = []
    for pixels in (*IMAGES[:2], *smaller, *IMAGES[2:]):
        tower.encode(pixels)
        captures.append(capturer.captured // tower.stages)
    assert captures == [0, 1, 1, 2, 3, 3]


def test_a_shape_that_does_not_fit_is_computed_kernel_by_kernel(one_tile: Path) -> None:
    capturer = EmulatedCapturer()
    tower, plain = Tower(one_tile, capturer, max_bytes=1), Tower(one_tile)
    for pixels in IMAGES:
        close(tower.encode(pixels), plain.encode(pixels))
    assert capturer.captured == tower.stages and capturer.replayed == 0


class FailingCapturer:
    """A capturer of a device that cannot capture these kernels."""

    def __init__(self) -> None:
        self.asked = 0

    def capture(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        self.asked += 1
        raise RuntimeError("operation not permitted when stream is capturing")


def test_layers_that_cannot_be_captured_are_computed_kernel_by_kernel(
    one_tile: Path, caplog: pytest.LogCaptureFixture
) -> None:
    capturer = FailingCapturer()
    tower, plain = Tower(one_tile, capturer), Tower(one_tile)
    for pixels in IMAGES:
        close(tower.encode(pixels), plain.encode(pixels))
    assert capturer.asked == 1
    assert "launched kernel by kernel: operation not permitted" in caplog.text
