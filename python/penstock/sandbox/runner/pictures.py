"""The pictures that a Python job makes: images, figures and frames of animations, within limits.

This file runs inside the sandbox, beside `interpreter.py` and under the same rules.
"""

from __future__ import annotations

import sys
from io import BytesIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_IMAGES = 32
MAX_FRAMES = 64
MAX_PICTURE_BYTES = 8 * 1024 * 1024
MAX_PICTURES_BYTES = 32 * 1024 * 1024
HOOKED = ("matplotlib.figure", "matplotlib.pyplot", "matplotlib.animation")
PNG_MODES = ("1", "L", "LA", "I", "P", "RGB", "RGBA")


class Pictures:
    """The pictures of one job after the other.

    `figure_code`: compiled runner/figures.py, loaded when user code imports matplotlib.
    """

    def __init__(self, figure_code: bytes) -> None:
        self.figure_code = figure_code
        self.figure_functions: dict[str, Any] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the pictures of the last job."""
        self.images: list[bytes] = []
        self.frames: list[bytes] = []
        self.num_dropped = 0
        self.num_frames = 0
        self.frame_stride = 1
        self.size_bytes = 0

    def fits(self, png: bytes) -> bool:
        return len(png) <= min(MAX_PICTURE_BYTES, MAX_PICTURES_BYTES - self.size_bytes)

    def add_image(self, png: bytes) -> None:
        if len(self.images) >= MAX_IMAGES or not self.fits(png):
            self.num_dropped += 1
            return
        self.size_bytes += len(png)
        self.images.append(png)

    def wants_frame(self) -> bool:
        """Count a frame of an animation; return whether it belongs to the even sample."""
        self.num_frames += 1
        return (self.num_frames - 1) % self.frame_stride == 0

    def add_frame(self, png: bytes) -> None:
        if not self.fits(png):
            return
        self.size_bytes += len(png)
        self.frames.append(png)
        if len(self.frames) == MAX_FRAMES:
            self.size_bytes -= sum(map(len, self.frames[1::2]))
            del self.frames[1::2]
            self.frame_stride *= 2

    def add_value(self, value: Any) -> str | None:
        """Add the value of an expression if it is a picture; return the repr of a Pillow image."""
        if self.figure_functions:
            self.figure_functions["capture_value"](value, self)
        pillow = sys.modules.get("PIL.Image")
        if pillow is None or not isinstance(value, pillow.Image):
            return None
        buffer = BytesIO()
        (value if value.mode in PNG_MODES else value.convert("RGB")).save(buffer, format="PNG")
        self.add_image(buffer.getvalue())
        width, height = value.size
        return f"<PIL Image size=({width}, {height})>"

    def add_open_figures(self) -> None:
        """Add the figures that are still open, and close them."""
        if self.figure_functions:
            self.figure_functions["capture_open"](self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module of matplotlib as the other finders of `sys.meta_path` do; hook it."""
        if name not in HOOKED:
            return None
        for finder in sys.meta_path:
            spec: Any = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self.hook(spec.loader, name)
                return spec
        return None

    def hook(self, loader: Any, name: str) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            if not self.figure_functions:
                from marshal import loads

                self.figure_functions["__builtins__"] = __builtins__
                exec(loads(self.figure_code), self.figure_functions)  # noqa: S302
            self.figure_functions["install"](name, module, self)

        loader.exec_module = exec_module
