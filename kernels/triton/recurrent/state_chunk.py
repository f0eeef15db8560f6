"""The chunk of a row with the states that it reads and writes, as `recurrent_state.StateRows`
describes them."""

from __future__ import annotations

import torch

from penstock.kernels.recurrent_state import StateRows
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.triton.language import tl, triton


@triton.jit
def chunk_of(starts, contexts, row):
    """Return (token, start, stop) of the chunk of a row: the index of its first token in the step,
    and the positions of its first token and after its last one. A row that does not exist has no
    context: its `stop` is 0."""
    token = tl.load(starts + row)
    stop = tl.load(contexts + row)
    return token, stop - (tl.load(starts + row + 1) - token), stop


def one_token_rows(tokens: int, inputs: StepInputs[torch.Tensor]) -> bool:
    """Return whether every row has one token: a step with as many tokens as rows."""
    return tokens == inputs.context_lens.shape[0]


def states_of(inputs: StepInputs[torch.Tensor]) -> StateRows[torch.Tensor]:
    """Return the states of the rows. Raises ValueError if there are none."""
    if inputs.states is None:
        raise ValueError("inputs.states: is None, expected the states of the rows")
    return inputs.states
