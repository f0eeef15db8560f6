"""Lists the names and shapes of a decoder's tensors, and compares a checkpoint with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.models.checkpoint.check_shapes import NO_TENSORS, Shape, check_shapes
from penstock.models.decoder.spec import DecoderSpec, ExpertsSpec, LongRopeScaling
from penstock.models.decoder.tensor_names import LONGROPE_FACTORS, TensorNames
from penstock.quant.checkpoint import Checkpoint


def check_tensors(
    checkpoint: Checkpoint,
    names: TensorNames,
    spec: DecoderSpec,
    also_expected: Mapping[str, Shape] = NO_TENSORS,
) -> None:
    """Check that the tensors in a checkpoint's header are those that `spec` requires, plus
    `also_expected` (name -> shape). Raises ModelError naming the first tensor that is missing,
    unexpected or of the wrong shape."""
    expected = expected_shapes(names, spec) | dict(also_expected)
    check_shapes(checkpoint, expected, _optional_shapes(names, spec), names.ignored)


def quantizable_names(names: TensorNames, spec: DecoderSpec) -> Iterator[str]:
    """Yield the names of all layer matrices that may be quantized: attention, feed-forward and
    experts, but not routers. A layer may lack some of them."""
    linears = (names.q, names.k, names.v, names.output, names.gate, names.up, names.down)
    of_experts = (names.expert_gate, names.expert_up, names.expert_down)
    for index, layer in enumerate(spec.layers):
        prefix = names.layer.format(index)
        yield from (f"{prefix}{linear}.weight" for linear in linears)
        if layer.experts is not None:
            numbers = range(layer.experts.count)
            for name in of_experts:
                each = [name.format(number) for number in numbers] if "{}" in name else [name]
                yield from (f"{prefix}{one}.weight" for one in each)


def expected_shapes(names: TensorNames, spec: DecoderSpec) -> dict[str, Shape]:
    """Return the name and shape of every required tensor."""
    shapes: dict[str, Shape] = {
        f"{names.embedding}.weight": (spec.vocab_size, spec.hidden_size),
        f"{names.final_norm}.weight": (spec.hidden_size,),
    }
    if not spec.tied_head:
        shapes[f"{names.head}.weight"] = (spec.vocab_size, spec.hidden_size)
    kinds = {own.experts: _layer_shapes(names, spec, own.experts) for own in spec.layers}
    for index, own in enumerate(spec.layers):
        prefix = names.layer.format(index)
        shapes.update({prefix + name: shape for name, shape in kinds[own.experts].items()})
    return shapes


def _optional_shapes(names: TensorNames, spec: DecoderSpec) -> dict[str, Shape]:
    """Return the name and shape of every optional tensor: a copy of a tied head, and RoPE factors.
    (`spec` already contains the values of LongRoPE factors.)"""
    shapes: dict[str, Shape] = {f"{names.head}.weight": (spec.vocab_size, spec.hidden_size)}
    if names.rope_factors is not None:
        long = isinstance(spec.rope.scaling, LongRopeScaling)
        for name in LONGROPE_FACTORS if long else (names.rope_factors,):
            shapes[name] = (spec.rope.rotary_dim // 2,)
    return shapes


def _layer_shapes(
    names: TensorNames, spec: DecoderSpec, experts: ExpertsSpec | None
) -> dict[str, Shape]:
    width, q, kv, ff = spec.hidden_size, spec.q_rows, spec.kv_rows, spec.intermediate_size
    matrices = [
        (names.q, q, width, spec.qkv_bias),
        (names.k, kv, width, spec.qkv_bias),
        (names.v, kv, width, spec.qkv_bias),
        (names.output, width, q, spec.output_bias),
    ]
    shapes: dict[str, Shape] = {}
    if experts is None:
        matrices += [
            (names.gate, ff, width, spec.mlp_bias),
            (names.up, ff, width, spec.mlp_bias),
            (names.down, width, ff, spec.mlp_bias),
        ]
    else:
        shapes |= _expert_shapes(names, spec.hidden_size, experts)
    for name, own_rows, columns, biased in matrices:
        rows = own_rows + shapes.get(f"{name}.weight", (0,))[0]  # equal names are one tensor
        shapes[f"{name}.weight"] = (rows, columns)
        if biased:
            shapes[f"{name}.bias"] = (rows,)
    if spec.sinks:
        shapes[names.sinks] = (spec.num_heads,)
    norms = {names.attention_norm: width, names.mlp_norm: width}
    if spec.qk_norm:
        norms |= {names.q_norm: spec.head_dim, names.k_norm: spec.head_dim}
    if spec.sandwich_norms:
        norms |= {names.attention_post_norm: width, names.mlp_post_norm: width}
    return shapes | {f"{name}.weight": (size,) for name, size in norms.items()}


def _expert_shapes(names: TensorNames, width: int, experts: ExpertsSpec) -> dict[str, Shape]:
    count, ff = experts.count, experts.intermediate_size
    shapes: dict[str, Shape] = {f"{names.router}.weight": (count, width)}
    matrices = {
        names.expert_gate: (ff, width),
        names.expert_up: (ff, width),
        names.expert_down: (width, ff),
    }
    if experts.biased:
        shapes[f"{names.router}.bias"] = (count,)
        shapes |= {f"{name}.bias": (count, rows) for name, (rows, _) in matrices.items()}
    for name, shape in matrices.items():
        if "{}" in name:
            shapes |= {f"{name}.weight".format(expert): shape for expert in range(count)}
        else:
            shapes[f"{name}.weight"] = (count, *shape)
    return shapes
