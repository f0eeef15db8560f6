"""`penstock tune`: reserved; says how settings are chosen now."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from penstock.cli.settings_parameters import MODEL_HELP
from penstock.config import SettingsError


def tune(
    model: Annotated[Optional[str], typer.Argument(help=MODEL_HELP)] = None,  # noqa: UP045
) -> None:
    """Search the best settings for a model (not built yet: use bench)."""
    raise SettingsError(
        "tune is not built yet; the first load of a model measures its kernels by itself, and"
        f" `penstock bench {model or 'MODEL'} --streams 1,2,4,8` measures settings, see"
        " docs/performance.md"
    )
