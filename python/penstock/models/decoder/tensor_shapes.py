"""Lists the names and shapes of a decoder's tensors, and compares a checkpoint with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from penstock.models.checkpoint.check_shapes import NO_TENSORS, Shape, check_shapes
from penstock.models.decoder import altup, experts_beside, per_layer_inputs
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.rope_spec import LongRopeScaling
from penstock.models.decoder.spec import DecoderSpec, LayerSpec, Norms
from penstock.models.decoder.tensor_names import LONGROPE_FACTORS, TensorNames
from penstock.quant.checkpoint import Checkpoint, TensorInfo


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
    check_shapes(checkpoint, expected, _optional_shapes(names, spec), _ignored(names, spec))


def predicting_prefixes(names: TensorNames, spec: DecoderSpec) -> tuple[str, ...]:
    """Return the prefixes of the names of `DecoderSpec.predicting_layers`."""
    layers = len(spec.layers)
    return tuple(
        names.layer.format(index) for index in range(layers, layers + spec.predicting_layers)
    )


def ignored_bytes(tensors: Mapping[str, TensorInfo], names: TensorNames, spec: DecoderSpec) -> int:
    """Return the bytes of all tensors in a checkpoint's header that are not read."""
    ignored = _ignored(names, spec)
    if ignored is None:
        return 0
    return sum(info.size_bytes for name, info in tensors.items() if ignored.fullmatch(name))


def _ignored(names: TensorNames, spec: DecoderSpec) -> re.Pattern[str] | None:
    """Return the pattern of the names of tensors that are not read."""
    patterns = [re.escape(prefix) + ".*" for prefix in predicting_prefixes(names, spec)]
    if names.ignored is not None:
        patterns.append(names.ignored.pattern)
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None


def quantizable_names(names: TensorNames, spec: DecoderSpec) -> Iterator[str]:
    """Yield the names of all layer matrices that may be quantized: attention, feed-forward and
    experts, but not routers. A layer may lack some of them."""
    linears = (names.q, names.k, names.v, names.output, names.gate, names.up, names.down)
    of_experts = (names.expert_gate, names.expert_up, names.expert_down)
    shared = (names.shared_gate, names.shared_up, names.shared_down)
    for index, layer in enumerate(spec.layers):
        prefix = names.layer.format(index)
        yield from (f"{prefix}{linear}.weight" for linear in linears)
        if layer.mixer is not None:
            yield from (prefix + names.mixer[role] for role in layer.mixer.linears)
        if spec.per_layer_inputs is not None:
            yield from (prefix + names.layer_parts[role] for role in per_layer_inputs.LAYER_LINEARS)
        if layer.experts is not None:
            numbers = range(layer.experts.count)
            for name in of_experts:
                each = [name.format(number) for number in numbers] if "{}" in name else [name]
                yield from (f"{prefix}{one}.weight" for one in each)
            yield from (f"{prefix}{name}.weight" for name in shared)


def expected_shapes(names: TensorNames, spec: DecoderSpec) -> dict[str, Shape]:
    """Return the name and shape of every required tensor."""
    shapes: dict[str, Shape] = {
        f"{names.embedding}.weight": (spec.vocab_size, spec.hidden_size),
        **_norm_shapes(names, names.final_norm, spec),
    }
    if not spec.tied_head:
        shapes[f"{names.head}.weight"] = (spec.vocab_size, spec.hidden_size)
    if spec.head_bias:
        shapes[f"{names.head}.bias"] = (spec.vocab_size,)
    for role, shape in _model_parts(spec).items():
        shapes |= _each(names.model_parts[role], shape)
    kinds = {own: _layer_shapes(names, spec, own) for own in set(spec.layers)}
    for index, own in enumerate(spec.layers):
        prefix = names.layer.format(index)
        shapes.update({prefix + name: shape for name, shape in kinds[own].items()})
    return shapes


def _model_parts(spec: DecoderSpec) -> dict[str, Shape]:
    """Return the shape of each tensor outside of layers, by role."""
    parts: dict[str, Shape] = {}
    if spec.per_layer_inputs is not None:
        parts |= per_layer_inputs.model_shapes(spec.per_layer_inputs, spec)
    if spec.altup is not None:
        parts |= altup.model_shapes(spec)
    return parts


def _layer_parts(spec: DecoderSpec, own: LayerSpec) -> dict[str, Shape]:
    """Return the shape of each tensor of a layer's further blocks, by role."""
    parts: dict[str, Shape] = {"layer_scalar": (1,)} if spec.layer_scalars else {}
    if spec.per_layer_inputs is not None:
        parts |= per_layer_inputs.layer_shapes(spec.per_layer_inputs, spec)
    if spec.altup is not None:
        parts |= altup.layer_shapes(spec.altup, spec)
    if own.experts is not None and own.experts.beside_dense:
        parts |= experts_beside.layer_shapes(spec)
    return parts


def _each(name: str, shape: Shape) -> dict[str, Shape]:
    """Return the shape of one tensor for all matrices of a stack or, if the name contains {}, of
    each matrix."""
    if "{}" not in name:
        return {name: shape}
    return {name.format(index): shape[1:] for index in range(shape[0])}


def matrix_shapes(names: TensorNames, spec: DecoderSpec) -> dict[str, Shape]:
    """Return the name and shape of every required tensor except the tensors of mixers that are not
    matrices of products."""
    vectors = set()
    for index, own in enumerate(spec.layers):
        if own.mixer is not None and own.has_mixer:
            roles = own.mixer.shapes(spec).keys() - set(own.mixer.linears)
            vectors |= {names.layer.format(index) + names.mixer[role] for role in roles}
    shapes = expected_shapes(names, spec)
    return {name: shape for name, shape in shapes.items() if name not in vectors}


def float_matrices(names: TensorNames, spec: DecoderSpec) -> frozenset[str]:
    """Return the names of `MixerSpec.float_matrices` of all layers."""
    return frozenset(
        names.layer.format(index) + names.mixer[role]
        for index, own in enumerate(spec.layers)
        if own.mixer is not None and own.has_mixer
        for role in own.mixer.float_matrices
    )


def _optional_shapes(names: TensorNames, spec: DecoderSpec) -> dict[str, Shape]:
    """Return the name and shape of every optional tensor: a copy of a tied head, RoPE factors, and
    the unused keys and values of layers that read another layer's cache. (`spec` already contains
    the values of LongRoPE factors.)"""
    shapes: dict[str, Shape] = {f"{names.head}.weight": (spec.vocab_size, spec.hidden_size)}
    if names.rope_factors is not None:
        long = isinstance(spec.rope.scaling, LongRopeScaling)
        for name in LONGROPE_FACTORS if long else (names.rope_factors,):
            shapes[name] = (spec.rope.rotary_dim // 2,)
    for index, own in enumerate(spec.layers):
        if own.attention.cache_of is not None:
            prefix, (_, kv_heads, dim) = names.layer.format(index), spec.heads(own)
            for name in (names.k, names.v):
                shapes[f"{prefix}{name}.weight"] = (kv_heads * dim, spec.hidden_size)
            shapes[f"{prefix}{names.k_norm}.weight"] = (dim,)
    return shapes


def _layer_shapes(names: TensorNames, spec: DecoderSpec, own: LayerSpec) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    shapes |= {names.layer_parts[role]: shape for role, shape in _layer_parts(spec, own).items()}
    if own.has_attention:
        shapes |= _attention_shapes(names, spec, own)
    elif own.mixer is not None and own.has_mixer:
        shapes |= {names.mixer[role]: shape for role, shape in own.mixer.shapes(spec).items()}
    if own.is_dense:
        width, ff, biased = spec.hidden_size, spec.feed_forward_size(own), spec.mlp_bias
        inputs = (names.gate, names.up) if spec.gated else (names.up,)
        shapes |= _linear_shapes(
            *((name, ff, width, biased) for name in inputs), (names.down, width, ff, biased)
        )
    if own.has_feed_forward and own.experts is not None:
        shapes |= _expert_shapes(names, spec.hidden_size, own.experts)
    norms: list[str] = []
    place = spec.layer_norms(own)
    if own.has_mixer:
        norms += _block_norms(place, names.attention_norm, names.attention_post_norm)
    if own.has_feed_forward and not spec.parallel:
        norms += _block_norms(place, names.mlp_norm, names.mlp_post_norm)
    for name in norms:
        shapes |= _norm_shapes(names, name, spec)
    return shapes


def _norm_shapes(names: TensorNames, name: str, spec: DecoderSpec) -> dict[str, Shape]:
    biases = (f"{name}.bias",) if spec.norm_bias else ()
    return dict.fromkeys((names.norm_weight(name), *biases), (spec.hidden_size,))


def _block_norms(place: Norms, before: str, after: str) -> list[str]:
    return {"pre": [before], "post": [after], "sandwich": [before, after]}[place]


def _attention_shapes(names: TensorNames, spec: DecoderSpec, own: LayerSpec) -> dict[str, Shape]:
    width, rows = spec.hidden_size, spec.qkv_rows(own)
    in_file = (2 * rows[0] if spec.output_gate else rows[0], *rows[1:])
    projections = zip((names.q, names.k, names.v), in_file, strict=True)
    shapes = _linear_shapes(
        *((name, count, width, spec.qkv_bias) for name, count in projections if count),
        (names.output, width, rows[0], spec.output_bias),
    )
    if spec.sinks:
        shapes[names.sinks] = (spec.num_heads,)
    if spec.qk_norm:
        whole = spec.qk_norm_form == "all"
        for name, count in ((names.q_norm, rows[0]), (names.k_norm, rows[1])):
            if count:
                shapes[f"{name}.weight"] = (count if whole else spec.heads(own)[2],)
    return shapes


def _linear_shapes(*matrices: tuple[str, int, int, bool]) -> dict[str, Shape]:
    """Return the shapes of linear layers, given as (name, rows, columns, whether it has a bias).
    Layers with equal names are one tensor that joins them by rows."""
    shapes: dict[str, Shape] = {}
    for name, own_rows, columns, biased in matrices:
        rows = own_rows + shapes.get(f"{name}.weight", (0,))[0]
        shapes[f"{name}.weight"] = (rows, columns)
        if biased:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def _expert_shapes(names: TensorNames, width: int, experts: ExpertsSpec) -> dict[str, Shape]:
    count, ff = experts.count, experts.intermediate_size
    shapes: dict[str, Shape] = {f"{names.router}.weight": (count, width)}
    gates = ((names.expert_gate, ff, width, False),) if experts.gated else ()
    matrices = _linear_shapes(
        *gates, (names.expert_up, ff, width, False), (names.expert_down, width, ff, False)
    )
    if experts.biased:
        shapes[f"{names.router}.bias"] = (count,)
        shapes |= {
            f"{name.removesuffix('.weight')}.bias": (count, rows)
            for name, (rows, _) in matrices.items()
        }
    if experts.correction_bias:
        shapes[names.router_bias] = (count,)
    if experts.expert_scale:
        shapes[names.expert_scale] = (count,)
    for name, shape in matrices.items():
        if "{}" in name:
            shapes |= {name.format(expert): shape for expert in range(count)}
        else:
            shapes[name] = (count, *shape)
    return shapes | _shared_shapes(names, width, experts)


def _shared_shapes(names: TensorNames, width: int, experts: ExpertsSpec) -> dict[str, Shape]:
    size = experts.shared_size
    if not size:
        return {}
    gates = ((names.shared_gate, size, width, False),) if experts.gated else ()
    shapes = _linear_shapes(
        *gates, (names.shared_up, size, width, False), (names.shared_down, width, size, False)
    )
    if experts.shared_gated:
        shapes[f"{names.shared_router}.weight"] = (width,)
    return shapes
