"""The backend that runs the modules of transformers with the paged KV cache. Imports torch."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from penstock.base.errors import ModelError
from penstock.base.resources import available_cores
from penstock.config import EngineSettings
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.runtime.backend import Floats, Ints
from penstock.runtime.cpu.kv_cache import KvCache
from penstock.runtime.cpu.native_sampling import NativeSampling
from penstock.runtime.cpu.transformers_architecture import ForeignModel
from penstock.runtime.memory import MemoryPlan, refuse_8_bit_cache

ATTENTION: Final = "penstock_paged"
_CHECKED_LENGTHS: Final = (5, 9)
_USED_OPTIONS: Final = {"scaling", "sliding_window", "softcap", "s_aux"}
_IDLE_OPTIONS: Final = {
    *("position_ids", "cache_position", "use_cache", "return_dict"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "logits_to_keep"),
}
"""Options of attention that change nothing here: the step contains the positions."""
_MOST_DEVIATION: Final = 0.1
"""Most mean difference from transformers' own attention, in standard deviations of the logits."""


@dataclass(slots=True)
class _Step:
    """The step that runs: its backend, inputs and caches, and for each call of attention the layer
    and its window, 0 for none."""

    backend: TransformersBackend
    inputs: StepInputs[Ints]
    caches: list[LayerCache[Any]]
    calls: list[tuple[int, int]]


class TransformersBackend(NativeSampling):
    """A `Backend` over the modules of transformers. Raises ModelError if the weights cannot be
    read, or if the modules compute other logits with the paged KV cache than without it."""

    adapters = None
    media = None
    hidden = None
    tells_prompts_apart = False
    mtp = None

    def __init__(
        self, folder: Path, foreign: ForeignModel, memory: MemoryPlan, settings: EngineSettings
    ) -> None:
        threads = settings.threads or available_cores()
        torch.set_num_threads(threads)
        self._where = f"{folder}: {foreign.architecture}"
        refuse_8_bit_cache(settings, "a model of transformers")
        self._ops = NativeOps.eager(Pool(threads))
        self._pool = KvCache(memory.cache)
        self._heads = (foreign.spec.num_heads, foreign.spec.num_kv_heads, foreign.spec.head_dim)
        self._layers = len(foreign.spec.layers)
        self._block_size = memory.cache.block_size
        self._vocab = foreign.spec.vocab_size
        self.buffer_bytes = memory.buffer_bytes
        self._model: Any = _read(folder, foreign, settings)
        # Some modules do not hand further arguments on, so attention finds the step in its module.
        self._steps: list[_Step | None] = []
        for module in self._model.modules():
            module.penstock_steps = self._steps
        forward = inspect.signature(self._model.forward).parameters
        if "position_ids" not in forward:
            raise ModelError(f"{self._where} takes no position_ids, so it cannot run in steps")
        self._selects = "logits_to_keep" in forward
        self._self_check(foreign, KvCache(replace(memory.cache, blocks=2)).present)

    @property
    def weight_bytes(self) -> int:
        return sum(one.numel() * one.element_size() for one in self._model.parameters())

    def logits(self, inputs: StepInputs[Ints]) -> Floats:
        """Run the forward pass of one step; see `Backend.logits`."""
        return self._run(_Step(self, inputs, self._pool.present, []))

    def check_options(self, module: Any, options: dict[str, Any]) -> None:
        """Raise ModelError unless attention is causal and all its options are known."""
        causal = options.pop("is_causal", None)
        if not (getattr(module, "is_causal", True) if causal is None else causal):
            raise ModelError(f"{self._where} has attention that is not causal")
        given = {name for name, value in options.items() if value is not None}
        if options.get("dropout") == 0.0:
            given.discard("dropout")
        unknown = sorted(given - _USED_OPTIONS - _IDLE_OPTIONS)
        if unknown:
            raise ModelError(f"{self._where}: attention with {', '.join(unknown)} is not supported")

    def attend(
        self, module: Any, states: tuple[torch.Tensor, ...], options: dict[str, Any], step: _Step
    ) -> torch.Tensor:
        """Store the keys and values of one layer and compute its attention. `states`: q, k, v, each
        [1, heads, T, D]. Returns [1, T, H, D]."""
        heads, kv_heads, head_dim = self._heads
        q, k, v = states
        tokens = len(step.inputs.tokens)
        wanted = (1, kv_heads, tokens, head_dim)
        if q.shape != (1, heads, tokens, head_dim) or k.shape != wanted or v.shape != wanted:
            raise ModelError(
                f"{self._where}: q, k and v have the shapes {tuple(q.shape)}, {tuple(k.shape)} and"
                f" {tuple(v.shape)}; config.json announces {self._heads} (heads, KV heads, size)"
            )
        layer, window = int(module.layer_idx), int(options.get("sliding_window") or 0)
        step.calls.append((layer, window))
        cache = step.caches[layer]
        slots = np.asarray(step.inputs.slots)
        blocks, offsets = slots // self._block_size, slots % self._block_size
        cache.keys[blocks, :, :, offsets] = _rows(k)
        cache.values[blocks, :, offsets, :] = _rows(v)
        sinks = options.get("s_aux")
        out = self._ops.attention(
            np.ascontiguousarray(_rows(q).reshape(tokens, heads * head_dim)),
            step.inputs,
            cache,
            self._heads,
            head_dim**-0.5 if options.get("scaling") is None else float(options["scaling"]),
            window,
            None if sinks is None else sinks.detach().to(torch.float32).numpy(),
            float(options.get("softcap") or 0.0),
        )
        rows = torch.from_numpy(np.array(out)).to(q.dtype)
        return rows.reshape(1, tokens, heads, head_dim)

    def prepare(self, used_blocks: int) -> bool:
        """Allocate memory of the KV cache ahead of its use; see `Backend.prepare`."""
        return self._pool.prepare(used_blocks)

    def close(self) -> None:
        del self._model, self._pool

    def _run(self, step: _Step) -> Floats:
        inputs = step.inputs
        rows = torch.from_numpy(np.array(inputs.sample_rows, np.int64))
        result = self._forward(inputs.tokens, inputs.positions, rows, step)
        if sorted(layer for layer, _ in step.calls) != list(range(self._layers)):
            raise ModelError(
                f"{self._where}: {len(step.calls)} calls of attention in a model of"
                f" {self._layers} layers; each layer must call it once"
            )
        return result

    def _forward(self, tokens: Ints, positions: Ints, rows: torch.Tensor, step: Any) -> Floats:
        self._steps[:] = [step]
        kept = {"logits_to_keep": rows} if self._selects else {}
        with torch.inference_mode():
            result = self._model(
                input_ids=torch.from_numpy(np.array(tokens, np.int64))[None],
                position_ids=torch.from_numpy(np.array(positions, np.int64))[None],
                use_cache=False,
                **kept,
            ).logits[0]
        logits = result if self._selects else result[rows]
        array: Floats = logits.to(torch.float32).numpy().copy()
        return array

    def _self_check(self, foreign: ForeignModel, caches: list[LayerCache[Any]]) -> None:
        """Compare a step of two sequences with transformers' own attention for each alone. Raises
        ModelError if they differ, or if a layer hides its window from our attention."""
        lengths = [min(length, foreign.spec.max_model_len) for length in _CHECKED_LENGTHS]
        tokens = (np.arange(sum(lengths)) * 7919 % self._vocab).astype(np.int32)
        positions = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
        row_of = np.repeat(np.arange(2), lengths)
        inputs = StepInputs(
            tokens=tokens,
            positions=positions,
            slots=(row_of * self._block_size + positions).astype(np.int32),
            query_starts=np.array([0, lengths[0], sum(lengths)], np.int32),
            context_lens=np.array(lengths, np.int32),
            block_tables=np.array([[0], [1]], np.int32),
            sample_rows=np.arange(sum(lengths), dtype=np.int32),
        )
        try:
            step = _Step(self, inputs, caches, [])
            paged = self._run(step)
            self._model.set_attn_implementation("eager")
            pieces = [slice(0, lengths[0]), slice(lengths[0], sum(lengths))]
            alone = [
                self._forward(
                    tokens[piece],
                    positions[piece],
                    torch.arange(piece.stop - piece.start),
                    None,
                )
                for piece in pieces
            ]
            self._model.set_attn_implementation(ATTENTION)
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
            raise ModelError(f"{self._where} cannot run in steps: {error}") from None
        self._check_windows(foreign.config, dict(step.calls))
        expected = np.concatenate(alone)
        if not np.abs(paged - expected).mean() <= _MOST_DEVIATION * expected.std():
            raise ModelError(
                f"{self._where} computes other logits with the paged KV cache than with"
                " transformers' own attention"
            )

    def _check_windows(self, config: Any, windows: dict[int, int]) -> None:
        """Raise ModelError if config.json announces a sliding window that a layer passes only in
        its mask, which our attention does not read. `windows`: layer -> window."""
        kinds = list(getattr(config, "layer_types", None) or ())
        hidden = [i for i, kind in enumerate(kinds) if "sliding" in kind and not windows[i]]
        announced = getattr(config, "sliding_window", None) is not None
        used = announced and getattr(config, "use_sliding_window", True)
        if hidden or (used and not kinds and not any(windows.values())):
            layers = ", ".join(map(str, hidden or windows))
            raise ModelError(
                f"{self._where}: sliding_window is set, but layers {layers} do not pass it to"
                " attention"
            )


def _rows(states: torch.Tensor) -> Floats:
    """Return [1, heads, T, D] as [T, heads, D] float32."""
    rows: Floats = states[0].transpose(0, 1).to(torch.float32).numpy()
    return rows


def _paged_attention(
    module: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attention_mask: Any = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    step: _Step = module.penstock_steps[-1]
    step.backend.check_options(module, options | {"attention_mask": attention_mask})
    return step.backend.attend(module, (q, k, v), options, step), None


def _read(folder: Path, foreign: ForeignModel, settings: EngineSettings) -> Any:
    """Return the modules with their weights. Reads safetensors of `folder` only."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _paged_attention)
    try:
        model, found = foreign.model_class.from_pretrained(
            folder,
            config=foreign.config,
            dtype=torch.float32 if settings.dtype == "f32" else "auto",
            attn_implementation=ATTENTION,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        raise ModelError(f"{folder}: transformers cannot load it: {error}") from None
    # transformers draws missing weights at random.
    for fault in ("missing", "unexpected", "mismatched"):
        names = sorted(str(name) for name in found[f"{fault}_keys"])
        if names:
            raise ModelError(f"{folder}: {fault} tensors: {', '.join(names[:5])}")
    return model.eval()
