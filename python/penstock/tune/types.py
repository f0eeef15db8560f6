"""The request of tuning, and its result."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from penstock.dialog.ranges import MAX_INTEGER

Profile = Literal["quality", "balanced", "fast"]
Quality = Literal["baseline", "near-lossless", "good", "acceptable", "degraded"]

DEFAULT_PROFILE: Final = "balanced"
DEFAULT_CONTEXT: Final = 4096
DEFAULT_BATCH: Final = 1
DEFAULT_IMAGES: Final = 1
DEFAULT_IMAGE_LENGTH: Final = 1024

Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class TuneModelRequest(Struct):
    """The model to tune, and the use for which settings are chosen.

    - `profile`: `quality`: the smallest loss that fits. `balanced` (default): the fastest type that
      is at least good. `fast`: the fastest type that is at least acceptable.
    - `cpu`: true: tune for the CPU even if there is a GPU.
    - `max_seq_len` (4096), `max_batch_size` (1): the tokens of a sequence, and the number of such
      sequences for which the KV cache shall have room.
    - `max_num_images` (1), `max_image_length` (1024): images in a prompt, and their longest side in
      pixels; ignored for models that read only text.
    - `token_source`: the token for the Hugging Face hub: `cache`, `none`, `literal:TOKEN`,
      `env:NAME` or `path:FILE`.
    """

    model_id: Annotated[
        str, Meta(description="`default`, an id or alias of `/v1/models`, or a Hugging Face id.")
    ]
    profile: Profile | None = None
    cpu: bool | None = None
    dtype: Annotated[
        str | None, Meta(description="`auto`, `f32`; `f16` and `bf16` mean `auto`.")
    ] = None
    hf_revision: Annotated[str | None, Meta(description="Branch, tag or commit.")] = None
    max_batch_size: Positive | None = None
    max_image_length: Positive | None = None
    max_num_images: Positive | None = None
    max_seq_len: Positive | None = None
    requested_isq: Annotated[
        str | None, Meta(description="The only type to tune: a value of `--quantization`, `none`.")
    ] = None
    token_source: str | None = None


class MemoryEstimate(Struct, frozen=True):
    """The memory that the engine plans for a candidate with the context asked for, in bytes.
    `other_bytes`: activations of a step, rows, towers and a fixed amount."""

    weight_bytes: int
    cache_bytes: int
    other_bytes: int
    total_bytes: int


class CacheEstimate(Struct, frozen=True):
    """A type of the KV cache: the bytes of a token in all layers, and the most tokens of each of
    `max_batch_size` sequences. `fits`: the context asked for fits."""

    dtype: str
    bytes_per_token: int
    max_context_tokens: int
    fits: bool


class SpeedEstimate(Struct, frozen=True):
    """The speed of a candidate, estimated from measured layers, in tokens per second.

    - `prefill_tokens_per_s`: a prompt of `prompt_tokens` tokens.
    - `decode_tokens_per_s`: one sequence, after that prompt.
    - `decode_at_context_tokens_per_s`: one sequence, at the end of the context asked for.
    - `batch_decode_tokens_per_s`: `batch_sequences` sequences together, after that prompt:
      `max_batch_size`, but at most 64.
    - `measured_layers`: the number of layers that were measured. If the model has more, their time
      is extrapolated.
    """

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    decode_at_context_tokens_per_s: float
    batch_decode_tokens_per_s: float
    batch_sequences: int
    prompt_tokens: int
    measured_layers: int
    model_layers: int


class Candidate(Struct, frozen=True, kw_only=True):
    """The weights of the model in one type.

    - `isq`: the value of `--quantization`; null: as stored.
    - `estimated_size_bytes`: the weights. `vram_usage_percent`: the share of the available memory
      that the engine plans, 0 to 1 and above.
    - `max_context_tokens`: the most tokens of each of `max_batch_size` sequences, with the default
      KV cache. `context_is_model_max`: no more than that by the model, not by the memory.
    - `quality`: the loss against the stored weights. `mean_kl`: the measurement behind it, in nats.
    - `fit_status`: whether the context asked for fits. A model is never divided between a GPU and
      the CPU, so it is never `hybrid`, and `device_layers_cli` is null.
    - `speed`: null if the candidate does not fit with any context, or could not be measured.
    """

    isq: str | None
    isq_name: str
    estimated_size_bytes: int
    vram_usage_percent: float
    max_context_tokens: int
    context_is_model_max: bool
    quality: Quality
    mean_kl: float | None
    fit_status: Literal["fits", "hybrid", "too-large"]
    device_layers_cli: str | None = None
    recommended: bool
    memory: MemoryEstimate
    caches: tuple[CacheEstimate, ...]
    speed: SpeedEstimate | None


class RecommendedSettings(Struct, frozen=True, omit_defaults=True):
    """Settings of the engine, by their names in a settings file. Settings that equal the default
    are left out."""

    model: str
    device: str = "auto"
    dtype: Literal["auto", "f32"] = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_cache_memory_mb: int | None = None
    encoder_cache_mb: int | None = None


class TuneModelResponse(Struct, frozen=True, kw_only=True):
    """The candidates and the recommended settings.

    - `backend`: `cpu` or `cuda`.
    - `candidates`: from the smallest loss to the largest.
    - `recommended_isq`: the value of `--quantization`; null: none, or nothing fits.
    - `device_layers`, `device_layers_cli`: always null. `paged_attn_mode`: always `auto`, since the
      KV cache is always paged.
    - `recommended_command`, `recommended_settings`: null if nothing fits.
    - `total_vram_bytes`: the memory of the device. `available_bytes`: the part that an engine may
      use.
    - `max_seq_len`, `max_batch_size`: the context and the sequences for which memory was planned.
    """

    model_id: str
    profile: Profile
    backend: Literal["cpu", "cuda"]
    candidates: list[Candidate]
    recommended_isq: str | None
    device_layers: None = None
    device_layers_cli: str | None = None
    paged_attn_mode: Literal["auto"] = "auto"
    recommended_command: str | None
    recommended_settings: RecommendedSettings | None
    total_vram_bytes: int
    available_bytes: int
    max_seq_len: int
    max_batch_size: int
    measured_s: float
    warnings: list[str]
    notes: list[str]
