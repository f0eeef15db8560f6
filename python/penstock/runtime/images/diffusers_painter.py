"""Image models that diffusers runs."""

from __future__ import annotations

import inspect
import io
import logging
from collections.abc import Callable, Generator
from typing import Any, Final

import torch

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.models.hub.model_files import ModelFiles, fingerprint
from penstock.models.images import check_pipeline, count_weights
from penstock.runtime.device_choice import choose_device
from penstock.runtime.images.painter import PainterInfo, Picture, Progress
from penstock.runtime.images.stepped_call import SteppedCall

log = logging.getLogger(__name__)

EXTRA: Final = "image models need more packages: pip install 'penstock[images]'"
NEEDED: Final = frozenset({"prompt", "height", "width", "generator", "callback_on_step_end"})
WORK_FACTOR: Final = 1.25
"""Memory that a pipeline needs, as a multiple of its weights."""
Z_IMAGE_TURBO_SHIFT: Final = 3.0
"""`shift` of the schedule of Z-Image-Turbo; that of Z-Image is 6."""


def load_painter(
    files: ModelFiles, settings: EngineSettings, available: int | None = None
) -> DiffusersPainter:
    """Return the image model in a diffusers folder. `available`: bytes of memory that it must fit,
    None for no check. Raises ModelError if it cannot be read, does not fit, or needs packages that
    are not installed."""
    try:
        import diffusers
        import transformers
        from safetensors import SafetensorError
    except ImportError as error:
        raise ModelError(f"{EXTRA} ({error})") from None
    # The classes of diffusers are imported when they are first named, with warnings.
    for logging_of in (diffusers.utils.logging, transformers.logging):
        logging_of.set_verbosity_error()
        logging_of.disable_progress_bar()
    name = check_pipeline(files.path)
    kind: Any = getattr(diffusers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, diffusers.DiffusionPipeline)):
        raise ModelError(f"{files.path}: diffusers {diffusers.__version__} has no pipeline {name}")
    parameters = inspect.signature(kind.__call__).parameters
    if not NEEDED.issubset(parameters):
        raise ModelError(f"{files.path}: {name} does not make images from a prompt alone")
    device = torch.device(choose_device(settings))
    dtype = torch.bfloat16 if device.type == "cuda" and settings.dtype == "auto" else torch.float32
    weight_bytes = dtype.itemsize * count_weights(files.path)
    if available is not None and WORK_FACTOR * weight_bytes > available:
        raise ModelError(
            f"the model does not fit: it needs {WORK_FACTOR * weight_bytes / 2**20:,.0f} MiB as"
            f" {_name(dtype)}, but {available / 2**20:,.0f} MiB are available"
        )
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        pipeline = kind.from_pretrained(
            str(files.path), dtype=dtype, use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{files.path}: diffusers cannot load it: {error}") from None
    _place(pipeline, device, weight_bytes)
    return DiffusersPainter(pipeline, files, weight_bytes, f"{_name(dtype)} on {device}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _place(pipeline: Any, device: torch.device, weight_bytes: int) -> None:
    """Move a pipeline to its device. If a GPU is too small for the whole pipeline, each part is
    moved to it only while it is used."""
    pipeline.set_progress_bar_config(disable=True)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if WORK_FACTOR * weight_bytes > free:
            log.warning("the GPU is too small for the whole pipeline; its parts take turns")
            pipeline.enable_model_cpu_offload(device=device)
            return
    pipeline.to(device)


class DiffusersPainter:
    """A `Painter` of a text-to-image pipeline of diffusers.

    An image has the pipeline's own number of steps and guidance, except for the models of
    `advised_options`.
    """

    def __init__(self, pipeline: Any, files: ModelFiles, weight_bytes: int, where: str) -> None:
        self._pipeline = pipeline
        self._options = advised_options(pipeline)
        self._parameters = inspect.signature(pipeline.__call__).parameters
        multiple = _multiple(pipeline)
        self.info = PainterInfo(files.model_id, fingerprint(files), multiple, weight_bytes)
        self.report = f"{weight_bytes / 2**20:,.0f} MiB of weights as {where}"

    def paint(self, picture: Picture) -> Generator[Progress, None, None]:
        done = 0
        run = SteppedCall(lambda pause: self._run(picture, pause))
        try:
            while (png := run.step()) is None:
                done += 1
                yield Progress(done, getattr(self._pipeline, "num_timesteps", None))
            yield Progress(done, done, png)
        finally:
            run.stop()

    def close(self) -> None:
        """Do nothing: the weights are freed with this object."""

    def _run(self, picture: Picture, pause: Callable[[], None]) -> bytes:
        def after_step(
            pipeline: Any, step: int, time: Any, tensors: dict[str, Any]
        ) -> dict[str, Any]:
            pause()
            return tensors

        options = dict(self._options)
        if picture.negative_prompt and "negative_prompt" in self._parameters:
            options["negative_prompt"] = picture.negative_prompt
        made = self._pipeline(
            prompt=picture.prompt,
            height=picture.height,
            width=picture.width,
            generator=torch.Generator("cpu").manual_seed(picture.seed),
            callback_on_step_end=after_step,
            **options,
        )
        file = io.BytesIO()
        made.images[0].save(file, "PNG")
        return file.getvalue()


def advised_options(pipeline: Any) -> dict[str, Any]:
    """Return the options that the authors of a model advise, if the defaults of its pipeline are
    others.

    - FLUX.1-schnell, which has no guidance embedding, and Z-Image-Turbo, whose schedule differs
      from that of Z-Image, were distilled to few steps without guidance.
    - Qwen-Image has guidance only with a negative prompt, which may be a space.
    """
    name = type(pipeline).__name__
    if name == "FluxPipeline" and not pipeline.transformer.config.guidance_embeds:
        return {"num_inference_steps": 4, "guidance_scale": 0.0}
    if name == "ZImagePipeline" and pipeline.scheduler.config.shift == Z_IMAGE_TURBO_SHIFT:
        return {"num_inference_steps": 8, "guidance_scale": 0.0}
    if name == "QwenImagePipeline":
        return {"negative_prompt": " "}
    return {}


def _multiple(pipeline: Any) -> int:
    """Return the number that must divide height and width: the factor of the image decoder, times
    the patch size if the pipeline has one."""
    processor = getattr(pipeline, "image_processor", None)
    factor = int(getattr(pipeline, "vae_scale_factor", 8))
    patched = factor * int(getattr(pipeline, "patch_size", None) or 1)
    if processor is None:
        return patched
    return max(patched, int(processor.config.vae_scale_factor))
