"""Adds the kinds of tokens to the inputs of a step, or removes them, as a plan needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.backend import Ints


def all_alike(inputs: StepInputs[Ints]) -> StepInputs[Ints]:
    """Return the inputs of a step for a plan that computes all tokens alike."""
    return replace(inputs, is_prompt=None, sampled_is_prompt=None)


def all_generated(inputs: StepInputs[Ints]) -> StepInputs[Ints]:
    """Return the inputs of a step whose tokens all count as generated."""
    return replace(
        inputs,
        is_prompt=np.zeros(len(inputs.tokens), np.int32),
        sampled_is_prompt=np.zeros(len(inputs.sample_rows), np.int32),
    )
