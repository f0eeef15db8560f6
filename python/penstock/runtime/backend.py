"""The interface between the CPU runtime and a backend, which runs a decoder with one implementation
of the ops."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.kernels.sampler_inputs import SamplingRows
from penstock.kernels.step_inputs import StepInputs
from penstock.models.decoder.draft_head import HeadName
from penstock.runtime.adapters import RuntimeAdapters
from penstock.runtime.media import TowerMedia

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class SamplingOps(Protocol):
    """Samples tokens from logits and computes log-probabilities. `kernels.sampler_inputs` describes
    the arguments."""

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        """Sample one token per row of `logits` [S, V], which is modified in place. Return token ids
        [S], negative for a row whose logits are not finite."""

    def top_logprobs(
        self, logits: Floats, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        """Return log-probabilities for the rows `rows` [R] of `logits`.

        `logits` are either the model's or as `sample` left them. Returns the log-probability of
        each of `tokens` [R], and the ids and the log-probabilities of the `count` most likely
        tokens, [R, count] each.
        """


class MtpRunner(Protocol):
    """The MTP head or the assistant of a model on a backend. An MTP head has its own KV cache in
    blocks with the numbers of the target's; an assistant reads the target's."""

    def run(
        self, inputs: StepInputs[Ints], rows: Floats, index: Ints, head: HeadName = "whole"
    ) -> tuple[Floats, Floats]:
        """Run the head over T tokens; see `PredictingHead.forward`. `rows` has at most as many rows
        as a step has tokens. `head`: the language-model head.

        Return the logits [S, V] float32 and the hidden states [T, W] float32, valid until the next
        call of this method or of `Backend.logits`.
        """
        ...


class Backend(SamplingOps, Protocol):
    """A decoder on a CPU with its weights and its KV cache."""

    @property
    def weight_bytes(self) -> int:
        """Memory of the decoder's matrices as they are held, in bytes, without the draft head."""

    @property
    def buffer_bytes(self) -> int:
        """Memory of the activations of one step, in bytes."""

    @property
    def tells_prompts_apart(self) -> bool:
        """Whether prompt tokens have another arithmetic than generated tokens, so that the inputs
        of a step should say which tokens these are."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """The adapter slots, or None without LoRA settings."""

    @property
    def media(self) -> TowerMedia[Any] | None:
        """The towers, or None for a model that reads only text."""

    def logits(self, inputs: StepInputs[Ints]) -> Floats:
        """Run the forward pass of one step. Return the logits [S, V] float32 of the tokens
        `inputs.sample_rows`, valid until the next call."""

    @property
    def hidden(self) -> Floats | None:
        """The final hidden state of each token of the last step, [T, W], for drafters that read
        it; valid until the next call of `logits`. None in a backend without such a drafter."""

    @property
    def mtp(self) -> MtpRunner | None:
        """The MTP head or the assistant, or None for a model that was loaded without."""

    def prepare(self, used_blocks: int) -> bool:
        """Allocate memory of the KV cache beyond the first `used_blocks` blocks. Return value: see
        `Runtime.prepare`."""

    def close(self) -> None: ...


class DecoderBackend(Backend, Protocol):
    """A backend that runs `models.decoder`, which may have a draft head."""

    def logits(self, inputs: StepInputs[Ints], head: HeadName = "whole") -> Floats:
        """Do the same as `Backend.logits`. `head`: "draft" for the logits of the draft head, in a
        step without adapters and media."""
