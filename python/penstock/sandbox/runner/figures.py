"""The hooks in matplotlib: figures that user code shows, saves or leaves open become images.

This file runs inside the sandbox once user code has imported matplotlib.
"""

from __future__ import annotations

import sys
from functools import wraps
from io import BytesIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from penstock.sandbox.runner.pictures import Pictures

IMAGE_DPI = 150
FRAME_DPI = 80

originals: dict[str, Any] = {}  # `Figure`, and its own `savefig`
captured: dict[int, Any] = {}  # figures that are among the images of this job already
animated: list[Any] = []  # figures of animations that are being saved, the inner one last


def draw(figure: Any, **options: Any) -> bytes:
    """Return the figure as a PNG."""
    buffer = BytesIO()
    originals["savefig"](figure, buffer, format="png", **options)
    return buffer.getvalue()


def capture(figure: Any, pictures: Pictures) -> None:
    """Add the figure to the images unless they hold it in its present state."""
    if id(figure) in captured and not figure.stale:
        return
    pictures.add_image(draw(figure, dpi=IMAGE_DPI, bbox_inches="tight"))
    captured[id(figure)] = figure
    figure.stale = False


def capture_value(value: Any, pictures: Pictures) -> None:
    """Add the value of an expression if it is a figure."""
    if isinstance(value, originals["Figure"]):
        capture(value, pictures)


def capture_open(pictures: Pictures) -> None:
    """Add all open figures of pyplot, and close them."""
    registry: Any = sys.modules.get("matplotlib._pylab_helpers")
    if registry is None:
        return
    try:
        for window in registry.Gcf.get_all_fig_managers():
            capture(window.canvas.figure, pictures)
    finally:
        registry.Gcf.destroy_all()
        captured.clear()


def install(name: str, module: Any, pictures: Pictures) -> None:
    """Hook the functions of a module of matplotlib that has been imported."""
    if name == "matplotlib.figure":
        hook_figure(module.Figure, pictures)
    elif name == "matplotlib.pyplot":
        module.show = wraps(module.show)(lambda *args, **options: capture_open(pictures))
    else:
        hook_animation(module.Animation)


def hook_figure(figure_class: Any, pictures: Pictures) -> None:
    savefig = figure_class.savefig
    originals.update(Figure=figure_class, savefig=savefig)

    @wraps(savefig)
    def saved(figure: Any, *args: Any, **options: Any) -> Any:
        result = savefig(figure, *args, **options)
        if not animated:
            capture(figure, pictures)
        elif pictures.wants_frame():
            pictures.add_frame(draw(figure, dpi=FRAME_DPI))
        return result

    figure_class.savefig = saved
    figure_class.show = wraps(figure_class.show)(
        lambda figure, *args, **options: capture(figure, pictures)
    )


def hook_animation(animation_class: Any) -> None:
    save = animation_class.save

    @wraps(save)
    def saved(animation: Any, *args: Any, **options: Any) -> Any:
        figure = animation._fig
        animated.append(figure)
        try:
            return save(animation, *args, **options)
        finally:
            animated.pop()
            captured[id(figure)] = figure  # its frames show it
            figure.stale = False

    animation_class.save = saved
