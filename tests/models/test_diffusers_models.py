"""Image models make the images that diffusers makes, with small random weights."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.dialog.ranges import DEFAULT_HEIGHT, DEFAULT_WIDTH
from penstock.models.hub.sources import files_at
from penstock.models.images import check_pipeline, count_weights
from penstock.models.loader.model_kind import model_kind
from penstock.runtime.images.load import load_image_model
from penstock.runtime.images.painter import Painter, Picture
from penstock.runtime.images.stepped_call import SteppedCall

diffusers = pytest.importorskip("diffusers")
# The pipelines are built with diffusers, so its absence must skip this file first.
from tests.support.images.chat_pipelines import (  # noqa: E402
    save_qwen_image,
    save_z_image,
    save_z_image_turbo,
)
from tests.support.images.tiny_pipelines import (  # noqa: E402
    save_flux,
    save_stable_diffusion,
    save_stable_diffusion_3,
    save_stable_diffusion_xl,
)

PICTURE = Picture("a red cat", 32, 48, 7)
FOUR_STEPS = {"num_inference_steps": 4, "guidance_scale": 0.0}
EIGHT_STEPS = {"num_inference_steps": 8, "guidance_scale": 0.0}
# How the pipeline is written, the multiple of its sides, and the options that its authors advise.
PIPELINES = [
    (save_flux, 4, FOUR_STEPS),
    (save_stable_diffusion, 2, {}),
    (save_stable_diffusion_xl, 2, {}),
    (save_stable_diffusion_3, 4, {}),
    (save_qwen_image, 4, {"negative_prompt": " "}),
    (save_z_image_turbo, 4, EIGHT_STEPS),
    (save_z_image, 4, {}),
]
SAVES = [save for save, _, _ in PIPELINES]
PUBLISHED_FACTOR = 8


def painter_at(folder: Path, available: int | None = None) -> Painter:
    files = files_at(folder, "m")
    assert model_kind(files) == "image"
    settings = EngineSettings(model=str(folder), device="cpu", threads=1)
    return load_image_model(files, settings, available)


def pixels(png: bytes | None) -> np.ndarray:
    assert png is not None
    return np.array(Image.open(BytesIO(png)))


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_flux(tmp_path_factory.mktemp("flux"))


def test_loading_writes_nothing_to_the_terminal(flux: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from penstock.config import EngineSettings\n"
        "from penstock.models.hub.sources import files_at\n"
        "from penstock.runtime.images.load import load_image_model\n"
        "settings = EngineSettings(model=sys.argv[1], device='cpu')\n"
        "print(load_image_model(files_at(Path(sys.argv[1]), 'm'), settings).report)"
    )
    command = [sys.executable, "-c", program, str(flux)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert ended.stderr == ""
    assert ended.stdout == "0 MiB of weights as float32 on cpu\n"


@pytest.mark.parametrize(("save", "multiple", "options"), PIPELINES)
def test_images_are_those_of_diffusers_also_after_a_stop(
    tmp_path: Path, save: Callable[[Path], Path], multiple: int, options: dict[str, Any]
) -> None:
    folder = save(tmp_path)
    painter = painter_at(folder)
    assert painter.info.multiple == multiple
    stopped = painter.paint(Picture("a blue dog", 16, 16, 3))
    assert next(stopped).done == 1
    stopped.close()
    progress = list(painter.paint(PICTURE))
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, use_safetensors=True)
    pipeline.set_progress_bar_config(disable=True)
    wanted = pipeline(
        prompt="a red cat",
        height=32,
        width=48,
        generator=torch.Generator("cpu").manual_seed(7),
        **options,
    ).images[0]
    made = pixels(progress[-1].png)
    assert made.shape == (32, 48, 3)
    assert np.array_equal(made, np.array(wanted))
    steps = pipeline.num_timesteps
    assert [one.done for one in progress] == [*range(1, steps + 1), steps]
    assert [one.png for one in progress[:-1]] == [None] * steps


@pytest.mark.parametrize("save", SAVES)
def test_memory_is_that_of_all_weights(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    folder = save(tmp_path)
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder, use_safetensors=True)
    parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    stored = [tensor for part in parts for tensor in part.state_dict().values()]
    weights = sum({tensor.data_ptr(): tensor.numel() for tensor in stored}.values())
    assert count_weights(folder) == weights
    with pytest.raises(ModelError, match="does not fit: it needs"):
        painter_at(folder, available=5 * weights - 1)
    assert painter_at(folder, available=5 * weights).info.weight_bytes == 4 * weights


@pytest.mark.parametrize("save", SAVES)
def test_an_image_of_the_default_size_begins(
    tmp_path: Path, save: Callable[[Path, int], Path]
) -> None:
    painter = painter_at(save(tmp_path, PUBLISHED_FACTOR))
    assert painter.info.multiple in (8, 16)
    steps = painter.paint(Picture("a red cat", DEFAULT_HEIGHT, DEFAULT_WIDTH, 7))
    assert next(steps).done == 1
    steps.close()


def test_seed_and_negative_prompt_change_an_image(tmp_path: Path) -> None:
    painter = painter_at(save_stable_diffusion(tmp_path))
    negative = Picture("a red cat", 32, 48, 7, negative_prompt="dog")
    other = Picture("a red cat", 32, 48, 8)
    first, second, third = (list(painter.paint(one))[-1].png for one in (PICTURE, negative, other))
    assert not np.array_equal(pixels(first), pixels(second))
    assert not np.array_equal(pixels(first), pixels(third))


def test_closing_the_steps_ends_the_image_and_its_thread(flux: Path) -> None:
    painter = painter_at(flux)
    before = threading.active_count()
    steps = painter.paint(PICTURE)
    assert next(steps).done == 1
    assert threading.active_count() == before + 1
    steps.close()
    assert threading.active_count() == before
    assert list(painter.paint(PICTURE))[-1].png is not None


def test_an_error_of_the_pipeline_is_raised(flux: Path) -> None:
    painter = painter_at(flux)
    with pytest.raises(RuntimeError, match="the call failed"):
        list(painter.paint(Picture("a", -4, 32, 1)))


def test_a_stepped_call_runs_only_inside_its_steps() -> None:
    seen: list[int] = []

    def work(pause: Callable[[], None]) -> str:
        for number in range(2):
            seen.append(number)
            pause()
        return "done"

    call = SteppedCall(work)
    assert seen == []
    assert (call.step(), list(seen)) == (None, [0])
    assert (call.step(), list(seen)) == (None, [0, 1])
    assert call.step() == "done"
    call.stop()
    stopped = SteppedCall(work)
    stopped.stop()
    stopped.stop()
    assert seen == [0, 1]


def test_a_pipeline_that_does_not_fit_is_refused(flux: Path) -> None:
    with pytest.raises(ModelError, match="does not fit: it needs"):
        painter_at(flux, available=1000)
    weights = sum(
        tensor.numel()
        for part in ("transformer", "vae", "text_encoder", "text_encoder_2")
        for tensor in load_tensors(flux / part)
    )
    assert count_weights(flux) == weights


def load_tensors(folder: Path) -> list[torch.Tensor]:
    from safetensors.torch import load_file

    return [tensor for path in folder.glob("*.safetensors") for tensor in load_file(path).values()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_class_name": ["pipeline", "Own"]}, "_class_name must name a class of diffusers"),
        ({"unet": ["own_unet", "Unet"]}, "unet needs the code 'own_unet'"),
        ({"_class_name": "NoSuchPipeline"}, "has no pipeline NoSuchPipeline"),
        ({"_class_name": "StableDiffusionUpscalePipeline"}, "not make images from a prompt alone"),
    ],
)
def test_a_folder_with_code_or_of_another_kind_is_refused(
    tmp_path: Path, flux: Path, change: dict[str, Any], message: str
) -> None:
    index = json.loads((flux / "model_index.json").read_text()) | change
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    (tmp_path / "vae").symlink_to(flux / "vae")
    with pytest.raises(ModelError, match=message):
        painter_at(tmp_path)


def test_pickled_and_broken_weights_are_refused(tmp_path: Path, flux: Path) -> None:
    (tmp_path / "model_index.json").write_text((flux / "model_index.json").read_text())
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "diffusion_pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(ModelError, match="pickled weights are not read"):
        check_pipeline(tmp_path)
    (tmp_path / "vae" / "diffusion_pytorch_model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="not a safetensors file"):
        painter_at(tmp_path)
