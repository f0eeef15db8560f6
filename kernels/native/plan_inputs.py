"""The inputs of a recorded plan beyond those of every step, and the arguments of its `run`."""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.native.recurrent_ops import state_operands
from penstock.kernels.step_inputs import MediaRows, StepInputs

ADAPTER_INPUTS: Final = (
    "adapter_slots",
    "adapter_order",
    "adapter_starts",
    "sampled_order",
    "sampled_starts",
)
CROSS_INPUTS: Final = ("cross_context_lens", "cross_block_tables")
STATE_INPUTS: Final = (
    "state_source",
    "state_base",
    "state_target",
    "state_keep",
    "state_save",
    "state_save_after",
)
KIND_INPUTS: Final = ("is_prompt", "sampled_is_prompt")
ROPE_INPUTS: Final = ("media_time", "media_height", "media_width", "media_rope_rows")


def media_inputs(media: MediaRows[Any] | None) -> tuple[str, ...]:
    """Return the names of the inputs of a plan for steps with such media."""
    if media is None:
        return ()
    rope = ROPE_INPUTS if media.rope_positions else ()
    return ("media_index", *rope, *(() if media.visible is None else ("media_visible",)))


def plan_arguments(
    inputs: StepInputs[Any], cross: StepInputs[Any] | None = None
) -> tuple[Any, ...]:
    """Return the arguments of a plan's `run` for a step with these inputs, in order. `cross`: the
    inputs of cross-attention, of which the context lengths and block tables are read; None for a
    plan without it."""
    arguments = (
        inputs.tokens,
        inputs.positions,
        inputs.slots,
        inputs.query_starts,
        inputs.context_lens,
        inputs.block_tables,
        inputs.sample_rows,
    )
    own, sampled, media = inputs.adapters, inputs.sampled_adapters, inputs.media
    further: tuple[Any, ...] = ()
    if own is not None and sampled is not None:
        further = (own.slots, own.order, own.starts, sampled.order, sampled.starts)
    if media is not None:
        optional = (media.rope_rows, media.visible)
        given = (array for array in optional if array is not None)
        further = (*further, media.index, *media.rope_positions, *given)
    if cross is not None:
        further = (*further, cross.context_lens, cross.block_tables)
    if inputs.states is not None:
        further = (*further, *state_operands(inputs.states))
    if inputs.is_prompt is not None:
        further = (*further, inputs.is_prompt, inputs.sampled_is_prompt)
    return (*arguments, further)
