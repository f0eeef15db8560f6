"""Fields of a request to tune that other tests of small models do not reach: images, the device,
and the revision and the token of a model on the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import EngineSettings, Environment
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.sources import files_at
from penstock.tune import job as jobs
from penstock.tune import tune as tuning
from penstock.tune.cpu_machine import CpuMachine
from penstock.tune.job import TuneJob, run_job
from penstock.tune.types import SpeedEstimate, TuneModelRequest, TuneModelResponse
from tests.support.checkpoints.small_llama import write_small_llama
from tests.support.checkpoints.small_qwen2_vl import write_small_qwen2_vl
from tests.support.servers.file_server import Files, publish, serving

IMAGE = re.compile(r"an image of (\d+) x \1 pixels takes (\d+) tokens; (\d+) take (\d+) of the")


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the measurement of layers, for tests of sizes."""
    speed = SpeedEstimate(100.0, 10.0, 5.0, 20.0, 2, 512, 2, 2)
    monkeypatch.setattr("penstock.tune.candidates.estimate_speed", lambda *_: speed)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_qwen2_vl(tmp_path_factory.mktemp("models") / "vl")


def tuned(model: Path, home: Path, **fields: Any) -> TuneModelResponse:
    """Tune the stored weights on a CPU with much memory."""
    machine = CpuMachine(home)
    machine.available_bytes = 1 << 40
    request = TuneModelRequest(str(model), requested_isq="none", **fields)
    settings = EngineSettings(model=str(model), threads=1)
    return tuning.tune(request, machine, files_at(model, "small"), settings)


def image_note(found: TuneModelResponse) -> tuple[int, ...]:
    """Return (pixels, tokens of an image, images, their tokens) of the note about images."""
    (match,) = filter(None, map(IMAGE.match, found.notes))
    return tuple(map(int, match.groups()))


def test_the_images_of_a_request_take_tokens_of_the_context(seeing: Path, tmp_path: Path) -> None:
    assert image_note(tuned(seeing, tmp_path, max_image_length=56)) == (56, 4, 1, 4)
    assert image_note(tuned(seeing, tmp_path, max_image_length=112, max_num_images=3)) == (
        *(112, 16, 3),
        48,
    )
    pixels, tokens, count, _ = image_note(tuned(seeing, tmp_path))
    assert (pixels, count) == (1024, 1)
    assert 16 < tokens <= 30_000 // 28**2, "the processor shrinks it to the pixels of its config"


def test_images_that_leave_no_room_for_text_are_mentioned(seeing: Path, tmp_path: Path) -> None:
    fields = {"max_image_length": 56, "max_seq_len": 40}
    assert not tuned(seeing, tmp_path, max_num_images=9, **fields).warnings
    (warning,) = tuned(seeing, tmp_path, max_num_images=10, **fields).warnings
    assert "10 images of 56 x 56 pixels leave no room" in warning


def test_the_recommended_encoder_cache_holds_the_images(seeing: Path, tmp_path: Path) -> None:
    few = tuned(seeing, tmp_path, max_image_length=56)
    assert few.recommended_settings is not None
    assert few.recommended_settings.encoder_cache_mb is None, "the default is enough"
    many = tuned(seeing, tmp_path, max_image_length=56, max_num_images=1 << 20)
    assert many.recommended_settings is not None and many.recommended_command is not None
    assert many.recommended_settings.encoder_cache_mb == 4 * 4 * 64
    assert "--encoder-cache-memory 1024" in many.recommended_command
    more = many.candidates[0].memory.total_bytes - few.candidates[0].memory.total_bytes
    assert more == (1024 - EngineSettings().encoder_cache_mb) << 20


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def test_a_request_may_force_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[EngineSettings] = []

    def choose(settings: EngineSettings) -> str:
        asked_for.append(settings)
        return "cpu"

    monkeypatch.setattr(jobs, "choose_device", choose)
    environment = Environment(tmp_path, tmp_path)
    settings = EngineSettings(model="m", device="cuda:3")
    for cpu in (True, False, None):
        job = TuneJob(TuneModelRequest("m", cpu=cpu), settings, "m")
        assert isinstance(jobs.machine_for(job, environment), CpuMachine)
    assert asked_for == [settings, settings], "only a request without `cpu` chooses"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """A hub whose repository has a context of 128 on main and of 64 on v2."""
    with serving(Files()) as files:

        def access(environment: Environment) -> HubAccess:
            return HubAccess(files.url, token=environment.hf_token)

        monkeypatch.setattr(jobs, "hub_access_of", access)
        yield files


def publish_contexts(hub: Files, folder: Path, contexts: dict[str, int]) -> None:
    """Publish a small model whose context depends on the revision."""
    write_small_llama(folder)
    config = json.loads((folder / "config.json").read_text())
    weights = (folder / "model.safetensors").read_bytes()
    for revision, context in contexts.items():
        own = json.dumps(config | {"max_position_embeddings": context}).encode()
        publish(hub, "who/what", {"config.json": own, "model.safetensors": weights}, revision)


def run(home: Path, token: str | None = None, **fields: Any) -> TuneModelResponse:
    """Run the job of a client for a model of the hub."""
    request = TuneModelRequest("who/what", cpu=True, requested_isq="none", **fields)
    settings = EngineSettings(model="who/what", threads=1)
    environment = Environment(home, home, hf_token=token)
    return run_job(TuneJob(request, settings, "who/what", origin="client"), environment)


def test_the_revision_of_a_request_is_tuned(hub: Files, tmp_path: Path) -> None:
    publish_contexts(hub, tmp_path / "m", {"main": 128, "v2": 64})
    main, v2 = run(tmp_path), run(tmp_path, hf_revision="v2")
    assert (main.max_seq_len, v2.max_seq_len) == (128, 64)
    assert not any("revision" in warning for warning in main.warnings)
    assert any("to serve v2, download it" in warning for warning in v2.warnings)


@pytest.mark.parametrize(
    ("source", "sent"),
    [
        (None, "Bearer own"),
        ("cache", "Bearer own"),
        ("none", None),
        ("literal:given", "Bearer given"),
    ],
)
def test_the_token_of_a_request_is_sent_to_the_hub(
    hub: Files, tmp_path: Path, source: str | None, sent: str | None
) -> None:
    publish_contexts(hub, tmp_path / "m", {"main": 128})
    run(tmp_path, token="own", token_source=source)
    assert set(hub.authorizations) == {sent}
