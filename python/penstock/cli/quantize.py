"""`penstock quantize`: reserved; says how to quantize now."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from penstock.cli.settings_parameters import MODEL_HELP
from penstock.config import SettingsError


def quantize(
    model: Annotated[Optional[str], typer.Argument(help=MODEL_HELP)] = None,  # noqa: UP045
) -> None:
    """Write a quantized model (not built yet: quantize while loading)."""
    raise SettingsError(
        "quantize is not built yet; quantize while loading instead: `penstock serve"
        f" {model or 'MODEL'} --quantization int8` (or int4, fp8), see docs/quantization.md"
    )
