"""The shards of a decoder, one per rank, compute what the whole decoder computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoder_stepper import Stepper
from random_checkpoint import dense, random_weights

from penstock.adapters.adapter import Adapter, Factors
from penstock.adapters.shard import shard_adapter
from penstock.base.errors import ModelError
from penstock.kernels.communicator import SINGLE_RANK, Communicator
from penstock.kernels.lora_slots import SlotSizes
from penstock.kernels.ops.lora import ReferenceSlots
from penstock.kernels.reference import ReferenceOps
from penstock.kernels.routing import Routing
from penstock.models.decoder.block_specs import AltUpSpec, LayerAttention, PerLayerInputsSpec
from penstock.models.decoder.decoder import Decoder
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.lora_targets import linear_sizes, lora_blocks
from penstock.models.decoder.mixers.latent_attention import LatentAttentionSpec
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import GGUF_NAMES
from penstock.models.decoder.weights import DecoderWeights
from penstock.models.loader.model_loader import LoadedModel
from penstock.models.loader.tensor_parallel import ShardWeights, shard_model, shard_spec
from penstock.quant.dequantize import dequantize
from penstock.quant.weight_slices import size_bytes
from penstock.runtime.adapters import factors_of
from tests.support.thread_ranks import ThreadRanks, on_ranks

PROMPT = [3, 17, 5, 40, 2, 9, 44, 31, 8, 8, 12, 30, 7, 23, 1, 40, 33, 6, 19]

# Each of four ranks has columns in whole groups of every integer format, but in no whole super
# group.
LLAMA = DecoderSpec(
    architecture="llama",
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=256,
    vocab_size=50,  # not a multiple of four
    norm_eps=1e-6,
    rope=RopeSpec(10_000.0, 32),
    layers=(LayerSpec(),) * 2,
    max_model_len=64,
)
TWO = Routing(2, renormalize=True)
MIXTURE = LayerSpec(experts=ExpertsSpec(6, TWO, 128))
GEMMA = replace(
    LLAMA,
    architecture="gemma3",
    norms="sandwich",
    qk_norm=True,
    norm_offset=1.0,
    embedding_scale=8.0,
    attention_scale=0.2,
    activation="gelu_tanh",
    tied_head=True,
    local_rope=RopeSpec(100.0, 32),
    layers=(LayerSpec(window=5), LayerSpec(), LayerSpec(window=5)),
)
PHI = replace(
    LLAMA,
    architecture="phi",
    norm_kind="layer",
    norm_bias=True,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    head_bias=True,
    parallel=True,
    gated=False,
    activation="gelu_tanh",
)
GPT_OSS = replace(
    LLAMA,
    architecture="gpt_oss",
    qkv_bias=True,
    output_bias=True,
    sinks=True,
    layers=(
        LayerSpec(5, experts=ExpertsSpec(6, TWO, 128, biased=True, activation="swiglu_oai")),
        LayerSpec(experts=ExpertsSpec(6, TWO, 256, biased=True, activation="swiglu_oai")),
    ),
)
CASES: dict[str, tuple[DecoderSpec, str]] = {
    "llama": (LLAMA, "f32"),
    "llama in bfloat16, tied": (replace(LLAMA, tied_head=True), "bf16"),
    "llama with as many kv heads": (replace(LLAMA, num_kv_heads=4), "f16"),
    "llama with one kv head": (replace(LLAMA, num_kv_heads=1), "f32"),
    "biases everywhere": (replace(LLAMA, qkv_bias=True, output_bias=True, mlp_bias=True), "f32"),
    "qwen2": (replace(LLAMA, qkv_bias=True), "f32"),
    "qwen3": (replace(LLAMA, qk_norm=True), "f32"),
    "gemma3": (GEMMA, "f32"),
    "phi3": (replace(LLAMA, architecture="phi3", rope=RopeSpec(10_000.0, 24)), "f32"),
    "glm4": (
        replace(
            LLAMA,
            architecture="glm4",
            interleaved_rope=True,
            norms="sandwich",
            qkv_bias=True,
            rope=RopeSpec(10_000.0, 16),
        ),
        "f32",
    ),
    "ernie4_5": (replace(LLAMA, interleaved_rope=True), "f32"),
    "phi3 of Q4_K": (replace(LLAMA, architecture="phi3"), "q4_k"),
    "phi3 of 8-bit floats, tiles": (
        replace(
            LLAMA, architecture="phi3", head_dim=128, intermediate_size=512, layers=(LayerSpec(),)
        ),
        "f8_tile",
    ),
    "granite": (replace(LLAMA, embedding_scale=54.0, logit_scale=0.125, norm_eps=1e-3), "f32"),
    "a vocabulary of fewer rows than the ranks want": (replace(LLAMA, vocab_size=45), "f32"),
    "smollm3": (replace(LLAMA, layers=(LayerSpec(), LayerSpec(rotary=False))), "f32"),
    "phi": (PHI, "f32"),
    "hunyuan": (replace(LLAMA, qk_norm=True, qk_norm_form="rotated"), "f32"),
    "arcee of Q8_0": (replace(LLAMA, gated=False, activation="relu_squared"), "q8_0"),
    "a mixture": (replace(LLAMA, layers=(MIXTURE, LayerSpec())), "f32"),
    "a mixture in every layer": (
        replace(LLAMA, intermediate_size=3, layers=(MIXTURE,) * 2),
        "bf16",
    ),
    "a mixture of Q4_0": (replace(LLAMA, layers=(MIXTURE,)), "q4_0"),
    "a mixture of 8-bit floats": (replace(LLAMA, layers=(MIXTURE,)), "f8_row"),
    "gpt-oss": (GPT_OSS, "f32"),
    "gpt-oss in MXFP4": (GPT_OSS, "mxfp4"),
    "gpt-oss with one kv head": (replace(GPT_OSS, num_kv_heads=1), "f32"),
    "Q4_0": (LLAMA, "q4_0"),
    "Q4_1": (LLAMA, "q4_1"),
    "Q5_1": (LLAMA, "q5_1"),
    "Q8_0": (LLAMA, "q8_0"),
    "Q2_K": (LLAMA, "q2_k"),
    "Q3_K": (LLAMA, "q3_k"),
    "Q4_K": (LLAMA, "q4_k"),
    "Q5_K": (LLAMA, "q5_k"),
    "Q6_K": (LLAMA, "q6_k"),
    "Q6_K, tied": (replace(LLAMA, tied_head=True), "q6_k"),
    "8-bit floats, a scale a row": (LLAMA, "f8_row"),
    "8-bit floats, one scale": (LLAMA, "f8_all"),
    "8-bit floats, tiles": (
        replace(LLAMA, head_dim=128, intermediate_size=512, layers=(LayerSpec(),)),
        "f8_tile",
    ),
    "8-bit floats, groups": (
        replace(LLAMA, head_dim=128, intermediate_size=512, layers=(LayerSpec(),)),
        "f8_group",
    ),
}
SHARED = ExpertsSpec(
    6,
    Routing(2, "sigmoid", True, scale=2.5, groups=3, groups_per_token=2),
    128,
    correction_bias=True,
    shared_size=256,
)
LATENT = LatentAttentionSpec(4, 32, 32, 16, 16, 32, scale=0.2)
DEEPSEEK = replace(
    LLAMA,
    architecture="deepseek_v3",
    num_kv_heads=4,
    rope=RopeSpec(10_000.0, 16),
    layers=(LayerSpec(mixer=LATENT), LayerSpec(mixer=LATENT, experts=SHARED)),
)
LITE = replace(LATENT, q_rank=0, biased=True, rotation="halves")
CASES |= {
    "qwen2 moe": (
        replace(
            LLAMA,
            architecture="qwen2_moe",
            qkv_bias=True,
            layers=(LayerSpec(experts=replace(SHARED, shared_gated=True, correction_bias=False)),),
        ),
        "f32",
    ),
    "deepseek": (DEEPSEEK, "f32"),
    "deepseek of Q8_0": (DEEPSEEK, "q8_0"),
    "deepseek without compressed queries": (
        replace(DEEPSEEK, layers=(LayerSpec(mixer=LITE),)),
        "bf16",
    ),
}
GEMMA4 = replace(
    GEMMA,
    architecture="gemma4",
    norm_offset=0.0,
    value_norm=True,
    layer_scalars=True,
    attention_cap=5.0,
    logit_cap=3.0,
    rope=RopeSpec(10_000.0, 64, turning_pairs=8),
    layers=(
        LayerSpec(window=5),
        LayerSpec(attention=LayerAttention(1, 64, keys_are_values=True)),
        LayerSpec(window=5, intermediate_size=512, attention=LayerAttention(cache_of=0)),
        LayerSpec(attention=LayerAttention(1, 64, cache_of=1)),
    ),
)
BESIDE = replace(MIXTURE.experts, activation="gelu_tanh", expert_scale=True, beside_dense=True)
CASES |= {
    "gemma4 with inputs per layer": (
        replace(GEMMA4, per_layer_inputs=PerLayerInputsSpec(32, 40)),
        "f32",
    ),
    "gemma4 with inputs per layer, of Q8_0": (
        replace(GEMMA4, per_layer_inputs=PerLayerInputsSpec(32, 50)),
        "q8_0",
    ),
    "gemma4 with experts": (
        replace(
            GEMMA4,
            rope=RopeSpec(10_000.0, 32),
            layers=(LayerSpec(window=5, experts=BESIDE), LayerSpec(experts=BESIDE)),
        ),
        "f32",
    ),
    "gemma3n": (
        replace(
            GEMMA4,
            architecture="gemma3n",
            layer_scalars=False,
            per_layer_inputs=PerLayerInputsSpec(32, 50),
            altup=AltUpSpec(32),
            rope=RopeSpec(10_000.0, 32),
            layers=(LayerSpec(window=5), LayerSpec()),
        ),
        "f32",
    ),
}
COUNTS = [2, 4]


@pytest.fixture(scope="module", autouse=True)
def one_thread_a_rank() -> Iterator[None]:
    """Use one torch thread per rank: more only add waiting for such small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model_of(spec: DecoderSpec, weights: DecoderWeights) -> LoadedModel:
    return LoadedModel("drawn", "", spec, weights)


def logits_of(
    model: LoadedModel,
    ranks: Communicator[torch.Tensor] = SINGLE_RANK,
    adapter: Adapter | None = None,
) -> torch.Tensor:
    """Return the logits of every token of the prompt in float64, computed in chunks and a
    decode."""
    ops = ReferenceOps(torch.float64)
    decoder = Decoder(model.spec, model.weights, ops, ranks=ranks)
    slots = None
    if adapter is not None:
        sizes = SlotSizes(1, 4, linear_sizes(model.spec))
        slots = ReferenceSlots(sizes, dtype=torch.float64)
        slots.install(0, slots.pack(factors_of(adapter, model.spec)))
    stepper = Stepper(decoder, ops, slots=slots)
    chunks = [PROMPT[:7], PROMPT[7:-1], PROMPT[-1:]]
    return torch.cat([stepper.step({0: chunk}, all_rows=True) for chunk in chunks])


def sharded_logits(
    model: LoadedModel, count: int, adapter: Adapter | None = None
) -> list[torch.Tensor]:
    def work(ranks: ThreadRanks) -> torch.Tensor:
        part = shard_model(model, ranks.rank, count)
        own = None if adapter is None else shard_adapter(adapter, model.spec, ranks.rank, count)
        return logits_of(part, ranks, own)

    return on_ranks(count, work)


def assert_close(found: list[torch.Tensor], expected: torch.Tensor, within: float) -> None:
    for logits in found:
        assert torch.equal(logits, found[0])
    torch.testing.assert_close(found[0], expected, atol=within, rtol=within)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("case", list(CASES))
def test_shards_give_the_logits_of_the_model(case: str, count: int) -> None:
    spec, form = CASES[case]
    model = model_of(spec, random_weights(spec, form))
    assert_close(sharded_logits(model, count), logits_of(model), 1e-10)


@pytest.mark.parametrize("count", COUNTS)
def test_heads_are_split_after_their_rows_are_reordered(count: int) -> None:
    """As in GGUF files of the llama architecture, including biases."""
    spec = replace(LLAMA, qkv_bias=True)
    model = model_of(spec, random_weights(spec, "q8_0", permuted_qk=True))
    plain = model_of(spec, random_weights(spec, "q8_0"))
    expected = logits_of(model)
    assert not torch.allclose(expected, logits_of(plain))
    assert_close(sharded_logits(model, count), expected, 1e-10)


@pytest.mark.parametrize("count", COUNTS)
def test_experts_in_one_tensor_are_split_too(count: int) -> None:
    """GGUF files store experts that way."""
    spec = replace(LLAMA, layers=(MIXTURE, LayerSpec()))
    model = model_of(spec, random_weights(spec, "q4_k", names=GGUF_NAMES))
    assert_close(sharded_logits(model, count), logits_of(model), 1e-10)


NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def random_adapter(spec: DecoderSpec, *names: str) -> Adapter:
    random = np.random.default_rng(7)
    q, kv, ff, width = spec.q_rows, spec.kv_rows, spec.intermediate_size, spec.hidden_size
    sizes = {"q": (q, width), "k": (kv, width), "v": (kv, width), "o": (width, q)}
    sizes |= {"gate": (ff, width), "up": (ff, width), "down": (width, ff)}

    def factors(rows: int, columns: int) -> Factors:
        a, b = random.standard_normal((4, columns)), random.standard_normal((rows, 4))
        return Factors((a / columns**0.5).astype(np.float32), b.astype(np.float32))

    layers = tuple({name: factors(*sizes[name]) for name in names} for _ in spec.layers)
    size = sum(one.a.nbytes + one.b.nbytes for layer in layers for one in layer.values())
    return Adapter("drawn", 4, size, layers)


def merged(spec: DecoderSpec, adapter: Adapter) -> LoadedModel:
    weights = random_weights(spec)
    changed = {}
    for index, layer in enumerate(adapter.layers):
        whole = weights.layer(index)
        linears = (whole.qkv, whole.output, whole.gate_up, whole.down)
        parts = [part for linear in linears if linear is not None for part in linear.parts]
        for (name, module), part in zip(NAMES.items(), parts, strict=True):
            if name in layer:
                change = layer[name].b.astype(np.float64) @ layer[name].a.astype(np.float64)
                changed[f"model.layers.{index}.{module}.weight"] = dense(dequantize(part) + change)
    return model_of(spec, random_weights(spec, changed=changed))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("names", [tuple(NAMES), ("q", "v"), ("o",), ("k", "up", "down")])
def test_shards_of_an_adapter_sum_to_its_update(names: tuple[str, ...], count: int) -> None:
    adapter = random_adapter(LLAMA, *names)
    model = model_of(LLAMA, random_weights(LLAMA))
    found = sharded_logits(model, count, adapter)
    assert_close(found, logits_of(model, adapter=adapter), 1e-10)
    assert_close(found, logits_of(merged(LLAMA, adapter)), 1e-4)  # float32 factors
    assert not torch.allclose(found[0], logits_of(model), atol=0.1)


def adapter_of_every_part(spec: DecoderSpec) -> Adapter:
    """Return a random adapter of all linear layers that adapters may change."""
    random = np.random.default_rng(7)

    def factors(rows: int, columns: int) -> Factors:
        a, b = random.standard_normal((4, columns)), random.standard_normal((rows, 4)) / 4
        return Factors((a / columns**0.5).astype(np.float32), b.astype(np.float32))

    layers = tuple(
        {
            part: factors(rows, linear.inputs)
            for linear in block.linears.values()
            for part, rows in linear.parts.items()
        }
        for block in lora_blocks(spec)
    )
    return Adapter("drawn", 4, 0, layers)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("case", ["qwen2 moe", "deepseek", "deepseek without compressed queries"])
def test_shards_of_an_adapter_of_latent_attention_or_shared_experts(case: str, count: int) -> None:
    spec, _ = CASES[case]
    model, adapter = model_of(spec, random_weights(spec)), adapter_of_every_part(spec)
    found = sharded_logits(model, count, adapter)
    assert_close(found, logits_of(model, adapter=adapter), 1e-10)
    assert not torch.allclose(found[0], logits_of(model), atol=0.01)


def test_shard_of_an_adapter_counts_its_own_bytes() -> None:
    adapter = random_adapter(LLAMA, "up", "down")
    part = shard_adapter(adapter, LLAMA, 1, 4)
    numbers = (
        4 * (LLAMA.hidden_size + LLAMA.intermediate_size // 4) * 2
    )  # a and b of both projections
    assert part.size_bytes == 4 * numbers * len(LLAMA.layers)
    assert part.rank == 4
    assert all(one.a.flags.c_contiguous for layer in part.layers for one in layer.values())


def test_a_single_rank_returns_its_own_tensors() -> None:
    x = torch.ones(2, 3)
    assert SINGLE_RANK.all_reduce(x) is x
    assert SINGLE_RANK.all_gather(x, 3) is x
    assert (SINGLE_RANK.rank, SINGLE_RANK.count) == (0, 1)


def test_the_only_shard_is_the_model() -> None:
    model = model_of(LLAMA, random_weights(LLAMA, "q4_k"))
    assert shard_spec(LLAMA, 1, "") == LLAMA
    assert torch.equal(logits_of(shard_model(model, 0, 1)), logits_of(model))


def test_several_ranks_hold_the_same_kv_head_if_there_are_fewer() -> None:
    assert shard_spec(replace(LLAMA, num_heads=8), 8, "").num_kv_heads == 1
    weights = random_weights(replace(LLAMA, num_heads=8))
    parts = [ShardWeights(weights, replace(LLAMA, num_heads=8), rank, 8) for rank in range(8)]
    keys = [part.layer(0).qkv.parts[1].data for part in parts]
    whole = weights.layer(0).qkv.parts[1].data
    for rank, key in enumerate(keys):
        np.testing.assert_array_equal(key, whole[:32] if rank < 4 else whole[32:])


@pytest.mark.parametrize(
    ("architecture", "tied"), [("llama", False), ("llama", True), ("phi3", False)]
)
@pytest.mark.parametrize("form", ["f32", "bf16", "q4_1", "q8_0", "f8_row"])
@pytest.mark.parametrize("count", COUNTS)
def test_counted_bytes_are_those_of_the_shard(
    count: int, form: str, architecture: str, tied: bool
) -> None:
    """The exception is one scale per row of 8-bit floats, which shorter rows need too."""
    layers = (MIXTURE if architecture == "llama" else LayerSpec(), LayerSpec())
    spec = replace(LLAMA, architecture=architecture, tied_head=tied, qk_norm=True, layers=layers)
    model = model_of(spec, random_weights(spec, form))
    part = shard_model(model, 1, count)
    assert isinstance(part.weights, ShardWeights)
    decoder = Decoder(part.spec, part.weights, ReferenceOps())
    norms = spec.hidden_size * (2 * len(spec.layers) + 1) + 2 * spec.head_dim * len(spec.layers)
    counted = part.weights.packed_bytes(size_bytes)
    assert counted == pytest.approx(decoder.weight_bytes + 4 * norms, rel=0.02 * (form == "f8_row"))


@pytest.mark.parametrize("count", COUNTS)
def test_sinks_and_biases_of_experts_are_counted(count: int) -> None:
    model = model_of(GPT_OSS, random_weights(GPT_OSS, "mxfp4"))
    part = shard_model(model, 0, count)  # only rank 0 has the output's bias
    decoder = Decoder(part.spec, part.weights, ReferenceOps())
    norms = GPT_OSS.hidden_size * (2 * len(GPT_OSS.layers) + 1)
    sinks = part.spec.num_heads * len(GPT_OSS.layers)
    counted = part.weights.packed_bytes(size_bytes)
    assert counted == decoder.weight_bytes + 4 * (norms + sinks)


def test_savings_of_8_bit_floats_are_those_of_the_shard() -> None:
    part = ShardWeights(random_weights(LLAMA), LLAMA, 1, 4)
    saved = 0
    for layer in part.layers():
        assert layer.gate_up is not None and layer.down is not None
        for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
            for matrix in linear.parts:
                rows, columns = matrix.shape
                saved += size_bytes(matrix) - rows * columns - 4 * rows
    assert part.float8_savings(size_bytes) == saved


@pytest.mark.parametrize(
    ("change", "count", "message"),
    [
        ({}, 3, "heads 4 cannot be divided among 3 ranks"),
        ({"num_heads": 12, "num_kv_heads": 6}, 4, "key-value heads 6 cannot be divided among 4"),
        ({"num_heads": 12, "num_kv_heads": 3}, 4, "key-value heads 3 cannot be divided among 4"),
        ({"intermediate_size": 102}, 4, "feed-forward width 102 cannot be divided among 4"),
        ({"qk_norm": True, "qk_norm_form": "all"}, 2, "norms of all heads cannot be divided"),
        (
            {"activation": "gelu_tanh", "layers": (LayerSpec(gate_deviations=1.0),)},
            2,
            "a feed-forward of which only the largest gates count cannot be divided",
        ),
        (
            {"layers": (LayerSpec(experts=ExpertsSpec(4, TWO, 34)),)},
            4,
            "feed-forward width of an expert 34 cannot be divided among 4",
        ),
    ],
)
def test_sizes_that_cannot_be_divided_are_named(
    change: dict[str, object], count: int, message: str
) -> None:
    spec = replace(LLAMA, **change)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=f"m: {message}"):
        shard_spec(spec, count, "m")
    with pytest.raises(ModelError, match=f"drawn: {message}"):
        shard_model(model_of(spec, random_weights(spec)), 0, count)


@pytest.mark.parametrize(
    ("form", "change", "count", "message"),
    [
        (
            "q4_0",
            {"intermediate_size": 160},
            2,
            r"drawn: model.layers.0.mlp.down_proj.weight: 160 columns in groups of 32 cannot be "
            "divided among 2 ranks",
        ),
        (
            "f8_tile",
            {"intermediate_size": 384},
            2,
            "layers.0.mlp.down_proj.weight: 384 columns in groups of 128",
        ),
        (
            "q6_k",
            {"head_dim": 16},
            4,
            "layers.0.self_attn.o_proj.weight: 64 columns in groups of 32 cannot be divided",
        ),
        (
            "q4_0",
            {"layers": (LayerSpec(experts=ExpertsSpec(4, TWO, 96)),)},
            2,
            "layers.0.mlp.experts.0.down_proj.weight: 96 columns in groups of 32 cannot",
        ),
    ],
)
def test_groups_of_columns_that_would_be_split_are_named(
    form: str, change: dict[str, object], count: int, message: str
) -> None:
    spec = replace(LLAMA, **change)  # type: ignore[arg-type]
    if "head_dim" in change:
        spec = replace(spec, rope=RopeSpec(10_000.0, 16))
    for rank in range(count):
        with pytest.raises(ModelError, match=message):
            list(ShardWeights(random_weights(spec, form), spec, rank, count).layers())
