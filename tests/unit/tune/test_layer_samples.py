"""Some layers are measured, and the time of the whole model follows from theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.models.decoder.block_specs import LayerAttention, PerLayerInputsSpec
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.tune.layer_samples import COLD_BYTES, WHOLE_BYTES, LayerSamples, choose_samples

GIB = 1 << 30
LOCAL, GLOBAL = LayerSpec(window=512), LayerSpec()


def spec_of(*layers: LayerSpec) -> DecoderSpec:
    return DecoderSpec(
        architecture="llama",
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
        vocab_size=100,
        norm_eps=1e-5,
        rope=RopeSpec(theta=1e4, rotary_dim=16),
        layers=layers,
        max_model_len=1024,
    )


def time_of(spec: DecoderSpec, layers: tuple[int, ...]) -> float:
    """A machine on which the ends take 5, a global layer 3 and a local one 2."""
    return 5 + sum(2 if spec.layers[index].window else 3 for index in layers)


@pytest.mark.parametrize(
    "layers",
    [
        (GLOBAL,) * 40,
        ((LOCAL,) * 5 + (GLOBAL,)) * 8,
        (GLOBAL, *(LOCAL,) * 31),
        (LOCAL, GLOBAL),
    ],
)
@pytest.mark.parametrize("layer_bytes", [COLD_BYTES // 7, COLD_BYTES, GIB])
def test_the_time_of_the_whole_model_follows_from_the_samples(
    layers: tuple[LayerSpec, ...], layer_bytes: int
) -> None:
    spec = spec_of(*layers)
    sizes = [layer_bytes] * len(layers)
    samples = choose_samples(spec, GIB // 2, sizes, 16 * GIB)
    assert samples is not None
    times = [time_of(spec, chosen) for chosen in samples.models]
    everything = tuple(range(len(layers)))
    assert samples.whole_time(times) == pytest.approx(time_of(spec, everything))
    assert all(len(set(chosen)) == len(chosen) for chosen in samples.models)
    largest = max(sum(sizes[index] for index in chosen) for chosen in samples.models)
    assert GIB // 2 + largest <= 16 * GIB
    for more, _ in samples.more:
        assert sum(sizes[index] for index in more) >= COLD_BYTES


def test_a_small_model_is_measured_whole() -> None:
    spec = spec_of(*(GLOBAL,) * 10)
    sizes = [WHOLE_BYTES // 20] * 10
    assert choose_samples(spec, 0, sizes, GIB) == LayerSamples(tuple(range(10)))


def test_noise_makes_no_layer_faster_than_nothing() -> None:
    samples = LayerSamples((0,), (((1,), 31.0),))
    assert samples.whole_time([5.0, 4.9]) == 5.0


def test_a_model_whose_layers_do_not_fit_has_no_samples() -> None:
    spec = spec_of(*(GLOBAL,) * 10)
    assert choose_samples(spec, GIB, [GIB] * 10, 2 * GIB) is None
    assert choose_samples(spec, 3 * GIB, [GIB // 8] * 10, 2 * GIB) is None


def test_layers_that_depend_on_others_are_measured_together_or_not_at_all() -> None:
    reader = LayerSpec(attention=LayerAttention(cache_of=0))
    shared = spec_of(GLOBAL, reader, reader)
    per_layer = replace(spec_of(*(GLOBAL,) * 3), per_layer_inputs=PerLayerInputsSpec(16, 100))
    for spec in (shared, per_layer):
        assert choose_samples(spec, GIB, [GIB] * 3, 8 * GIB) == LayerSamples((0, 1, 2))
        assert choose_samples(spec, GIB, [GIB] * 3, 2 * GIB) is None


def test_a_layer_of_another_width_is_another_kind() -> None:
    wide = LayerSpec(intermediate_size=512)
    samples = choose_samples(spec_of(GLOBAL, *(wide,) * 20), 0, [GIB] * 21, 16 * GIB)
    assert samples is not None and samples.base[0] == 0
    assert len(samples.base) == 2 and sum(factor for _, factor in samples.more) > 1
