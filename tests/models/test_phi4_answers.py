"""Phi-4-multimodal answers images, recordings, both and plain texts in one batch as `transformers`
does, each with its own adapter or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Phi4MultimodalForCausalLM
from transformers.models.phi4_multimodal.feature_extraction_phi4_multimodal import (
    Phi4MultimodalFeatureExtractor,
)

from penstock.base.errors import InvalidRequest, ModelError
from penstock.config import EngineSettings, LoraSettings
from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.engine.types import AdapterSource, MediaItem, TokenDelta, TokenRequest
from penstock.models.families.registry import media_spec_of_folder
from penstock.models.hub.sources import files_at
from penstock.models.media.prepared import PreparedMedia, Sound
from penstock.runtime import start_runtime
from tests.support.checkpoints.small_phi4_multimodal import (
    ADAPTERS,
    write_small_phi4_multimodal,
)
from tests.support.media.phi4_images import prepared
from tests.support.speech.audio_models import RATE, sound

TOKENS = 8
WORDS = (72, 101, 108, 108, 111)
IMAGE = np.random.default_rng(1).integers(0, 255, (317, 448, 3)).astype(np.uint8)
NOISE = sound(20_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_phi4_multimodal(tmp_path_factory.mktemp("phi4"))


@pytest.fixture
def core(folder: Path) -> Iterator[EngineCore]:
    with_clients = LoraSettings(max_adapters=1, max_rank=4)
    started = engine(folder, lora=with_clients)
    yield started
    started.close()


def engine(folder: Path, **settings: Any) -> EngineCore:
    given = EngineSettings(model=str(folder), threads=2, dtype="f32", **settings)
    return EngineCore.for_runtime(start_runtime(files_at(folder, "phi4"), given), given)


def items_of(folder: Path, *kinds: str) -> list[PreparedMedia]:
    spec = media_spec_of_folder(folder)
    assert spec is not None
    made = {"image": lambda: spec.processor.image(IMAGE)}
    made["audio"] = lambda: spec.processor.audio(Sound(NOISE, RATE))
    return [made[kind]() for kind in kinds]


def request_of(folder: Path, name: str, *kinds: str) -> TokenRequest:
    """Return a prompt with words, then media of these kinds with words after each."""
    spec = media_spec_of_folder(folder)
    assert spec is not None
    tokens, items = list(WORDS), []
    for media in items_of(folder, *kinds):
        expansion = spec.processor.expand(media, lambda _: ())
        count = len(expansion.token_ids)
        items.append(MediaItem(media.digest(), media, len(tokens), count, expansion.runs))
        tokens += [*expansion.token_ids, *WORDS]
    return TokenRequest(
        name, tuple(tokens), Sampling(temperature=0.0), 0, TOKENS, top_logprobs=0,
        media=tuple(items),
    )  # fmt: skip


def run(core: EngineCore, requests: Sequence[TokenRequest]) -> dict[str, list[TokenDelta]]:
    """Return the answers of requests that are computed together."""
    answers: dict[str, list[TokenDelta]] = {request.id: [] for request in requests}
    for request in requests:
        core.submit(request)
    while core.has_work:
        for output in core.step():
            assert output.finish != "error", output.error
            answers[output.id] += output.tokens
    return answers


def merged(folder: Path, adapter: str | None) -> Any:
    """Return transformers' model with an adapter merged into its weights."""
    model = Phi4MultimodalForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    if adapter is None:
        return model
    factors = load_file(folder / adapter / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    for name in [name for name in factors if ".lora_A." in name]:
        module = modules[name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")]
        update = factors[name.replace("lora_A", "lora_B")] @ factors[name]
        module.weight.data += 2 * update  # alpha is twice the rank
    return model


@torch.inference_mode()
def expected(folder: Path, request: TokenRequest) -> list[tuple[int, float]]:
    """Return the tokens of transformers' answer with their log-probabilities."""
    kinds = [item.media.kind for item in request.media]
    vision, speech = ADAPTERS
    model = merged(folder, vision if "image" in kinds else speech if kinds else None)
    inputs: dict[str, Any] = {}
    if "image" in kinds:
        inputs |= prepared(IMAGE)
        del inputs["num_img_tokens"]
    if "audio" in kinds:
        extract = Phi4MultimodalFeatureExtractor()
        inputs |= extract([NOISE], sampling_rate=RATE, return_tensors="pt")
    ids = torch.tensor([request.token_ids])
    found = []
    for _ in range(TOKENS):
        scores = model(input_ids=ids, **inputs, use_cache=False).logits[0, -1].log_softmax(-1)
        token = int(scores.argmax())
        found.append((token, float(scores[token])))
        ids = torch.cat([ids, torch.tensor([[token]])], 1)
    return found


REQUESTS = {
    "text": (),
    "image": ("image",),
    "audio": ("audio",),
    "both": ("audio", "image"),
}


def test_answers_in_one_batch_are_those_of_transformers(folder: Path, core: EngineCore) -> None:
    requests = [request_of(folder, name, *kinds) for name, kinds in REQUESTS.items()]
    answers = run(core, requests)
    for request in requests:
        wanted = expected(folder, request)
        given = answers[request.id]
        assert [one.token_id for one in given] == [token for token, _ in wanted], request.id
        np.testing.assert_allclose(
            [one.logprob for one in given], [score for _, score in wanted], atol=2e-3
        )


def test_a_recording_beside_an_image_is_encoded_in_its_own_way(
    folder: Path, core: EngineCore
) -> None:
    run(core, [request_of(folder, "audio", "audio")])
    run(core, [request_of(folder, "both", "audio", "image")])
    assert core.gauges().media_items_encoded == 3
    run(core, [request_of(folder, "again", "audio", "image")])
    assert core.gauges().media_items_encoded == 3


def test_clients_do_not_see_the_adapters_of_the_model(folder: Path, core: EngineCore) -> None:
    assert core.adapters() == ()
    plain = request_of(folder, "text")
    for revision in ("own:image", "own:audio"):
        with pytest.raises(InvalidRequest, match="no adapter of that generation"):
            core.submit(msgspec.structs.replace(plain, adapter=revision))


def test_an_adapter_of_a_client_beside_media_is_refused(folder: Path, core: EngineCore) -> None:
    added = core.add_adapter(AdapterSource("a" * 64, str(folder / "vision-lora")))
    while not added.done():
        core.step()
    text, image = request_of(folder, "text"), request_of(folder, "image", "image")
    with pytest.raises(InvalidRequest, match="leave `adapter` out") as caught:
        core.submit(msgspec.structs.replace(image, adapter="a" * 64))
    assert caught.value.field == "adapter"
    answers = run(core, [msgspec.structs.replace(text, adapter="a" * 64)])
    assert len(answers["text"]) == TOKENS


def test_media_need_no_adapters_of_clients(folder: Path) -> None:
    core = engine(folder)
    try:
        answers = run(core, [request_of(folder, "image", "image")])
    finally:
        core.close()
    wanted = expected(folder, request_of(folder, "image", "image"))
    assert [one.token_id for one in answers["image"]] == [token for token, _ in wanted]


def test_a_damaged_adapter_ends_the_start(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "m"
    shutil.copytree(folder, copy)
    (copy / "speech-lora" / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(ModelError, match=r"speech-lora.*peft_type"):
        engine(copy)
