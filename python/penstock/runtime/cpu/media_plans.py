"""The plans of steps with media, which are recorded when they are first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.lora_slots import AdapterSlots
from penstock.kernels.native import PlanOps
from penstock.kernels.step_inputs import MediaRows

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Record = Callable[[AdapterSlots | None, MediaRows[Ints]], tuple[PlanOps, Any]]


class MediaPlans:
    """Records one plan for each form of a step with media: with or without adapters, DeepStack
    rows, three positions per token, and tokens that see later ones.

    - `text_plan`: the plan of steps without media, whose memory the plans use if it is large
      enough.
    - `record(slots, media)`: returns the recorder of a step and its output.
    """

    def __init__(self, text_plan: Any, record: Record) -> None:
        self._text_plan = text_plan
        self._record = record
        self._plans: dict[tuple[bool, int, int, bool], Any] = {}

    def get(self, slots: AdapterSlots | None, media: MediaRows[Ints]) -> Any:
        """Return the plan for steps with media like `media`, whose encoded rows must be in the same
        buffers in all steps. `slots`: None for a step without adapters."""
        form = (
            slots is not None,
            len(media.deep),
            len(media.rope_positions),
            media.visible is not None,
        )
        if form not in self._plans:
            recorder, output = self._record(slots, media)
            plan = recorder.finish(output)
            if plan.arena_bytes <= self._text_plan.arena_bytes:
                plan = recorder.finish(output, self._text_plan)
            self._plans[form] = plan
        return self._plans[form]


def rows_of(tensor: npt.NDArray[Any]) -> Floats:
    """Return a copy of a tower's result as float32."""
    return np.array(tensor, np.float32, order="C")
