"""The plans of a native backend that run the layers after the last writer of a KV cache for the
sampled tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.kernels.lora_slots import AdapterSlots
from penstock.kernels.native import NativeOps, PlanOps, plan_arguments
from penstock.kernels.step_inputs import LayerCache, MediaRows, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cpu.tail_inputs import tail_inputs


class NativeTail:
    """Two plans for steps that sample only some of their tokens: the layers up to the last writer,
    and the others with the language-model head.

    `sizes`: most tokens, rows, samples and blocks of a row in a step.
    """

    def __init__(
        self,
        decoder: Decoder[Any],
        ops: NativeOps,
        sizes: tuple[int, int, int, int],
        caches: Sequence[LayerCache[Any] | None],
        slots: AdapterSlots | None,
        shared: Any,
    ) -> None:
        """Record the plans. They use the memory of the plan `shared` if it is large enough."""
        self._vocab_size = decoder.spec.vocab_size
        tokens, rows, samples, blocks = sizes
        width = decoder.spec.hidden_size
        # The second plan gathers the streams from here, as other plans do with encoded media.
        self._streams: list[Any] = [
            np.zeros((samples, width), np.float32) for _ in range(decoder.num_streams)
        ]
        adapted, kinds = slots is not None, ops.tells_prompts_apart
        recorder = ops.recorder(tokens, rows, samples, blocks, adapters=adapted, kinds=kinds)
        first, *others = decoder.trunk(recorder, recorder.inputs, caches, slots)
        for other in others:
            recorder.keep(other)
        self._trunk = _finish(recorder, first, shared)
        carrier = MediaRows(np.empty(0, np.int32), self._streams[0])
        recorder = ops.recorder(
            samples, samples, samples, blocks, adapters=adapted, media=carrier, kinds=kinds
        )
        media = recorder.inputs.media
        assert media is not None
        streams = [recorder.gather_rows(rows, media.index) for rows in self._streams]
        inputs = replace(recorder.inputs, media=None)
        logits = decoder.tail(recorder, inputs, streams, caches, slots)
        self._tail = _finish(recorder, logits, shared)

    def logits(self, inputs: StepInputs[Ints]) -> Floats:
        """Return the logits of the sampled tokens, valid until the next run of a plan."""
        count = len(inputs.sample_rows)
        first: Floats = self._trunk.run(*plan_arguments(inputs))
        if not count:
            return np.empty((0, self._vocab_size), np.float32)
        for index, buffer in enumerate(self._streams):
            buffer[:count] = self._trunk.kept(index - 1) if index else first
        carrier = MediaRows(np.arange(count, dtype=np.int32), self._streams[0])
        given = replace(tail_inputs(inputs), media=carrier)
        logits: Floats = self._tail.run(*plan_arguments(given))
        return logits


def _finish(recorder: PlanOps, output: Any, shared: Any) -> Any:
    """Return the plan, in the memory of `shared` if that is large enough."""
    plan = recorder.finish(output)
    return recorder.finish(output, shared) if plan.arena_bytes <= shared.arena_bytes else plan
