"""The headers of a model on the hub give the sizes of its weights without a download of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file

from penstock.base.errors import ModelError
from penstock.models.hub import headers
from penstock.models.hub.download import DownloadRefused
from penstock.models.hub.hub import RepositoryUnknown
from penstock.models.hub.hub_access import HubAccess
from penstock.models.hub.sources import files_at, resolve_headers
from penstock.models.loader.model_loader import load_model
from penstock.runtime.weight_bytes import file_bytes
from tests.support.checkpoints.small_llama import (
    CONTEXT,
    FF,
    HEADS,
    KV_HEADS,
    LAYERS,
    WIDTH,
    write_small_llama,
)
from tests.support.checkpoints.small_moe import GGUF_NAMES
from tests.support.servers.file_server import Files, publish, serving


@pytest.fixture
def hub() -> Iterator[Files]:
    with serving(Files()) as files:
        yield files


def write_small_gguf(path: Path) -> None:
    """Write a small Llama as a GGUF file with float16 matrices."""
    folder = write_small_llama(path.parent / "source")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, values in load_file(folder / "model.safetensors").items():
        for old, new in GGUF_NAMES.items():
            name = name.replace(old, new)
        writer.add_tensor(name, values if values.ndim > 1 else values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def folder_content(folder: Path) -> dict[str, bytes]:
    names = ("config.json", "model.safetensors")
    return {name: (folder / name).read_bytes() for name in names}


def test_a_folder_has_the_sizes_of_the_repository(
    hub: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "FIRST_BYTES", 64)
    content = folder_content(write_small_llama(tmp_path / "own", width=256, ff=512))
    publish(hub, "who/what", content, revision="v2")
    found = resolve_headers("who/what", tmp_path, HubAccess(hub.url), tmp_path / "t", "v2")
    own = files_at(tmp_path / "own", "own")
    assert file_bytes(found) == file_bytes(own) == len(content["model.safetensors"])
    spec = load_model(own, "auto").spec
    assert load_model(found, "auto", values="random").spec == spec
    sent = hub.promised_bytes["/who/what/resolve/v2/model.safetensors"]
    assert sent < len(content["model.safetensors"]) // 50


def test_a_gguf_header_is_fetched_until_it_is_complete(
    hub: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "FIRST_BYTES", 64)
    write_small_gguf(tmp_path / "m.gguf")
    publish(hub, "who/what", {"m.gguf": (tmp_path / "m.gguf").read_bytes()})
    access = HubAccess(hub.url, token="secret")
    found = resolve_headers("who/what/m.gguf", tmp_path, access, tmp_path / "t")
    own = load_model(files_at(tmp_path / "m.gguf", "own"), "auto")
    assert load_model(found, "auto", values="random").spec == own.spec
    assert found.path.stat().st_size == (tmp_path / "m.gguf").stat().st_size
    assert set(hub.authorizations) == {"Bearer secret"}


def test_a_server_without_ranges_sends_the_header_too(
    hub: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headers, "FIRST_BYTES", 64)
    hub.ignore_ranges = True
    publish(hub, "who/what", folder_content(write_small_llama(tmp_path / "own")))
    found = resolve_headers("who/what", tmp_path, HubAccess(hub.url), tmp_path / "t")
    assert load_model(found, "auto", values="random").spec.vocab_size == 200


def test_a_model_on_disk_sends_no_request(hub: Files, tmp_path: Path) -> None:
    write_small_llama(tmp_path / "models" / "who--what")
    found = resolve_headers("who/what", tmp_path, HubAccess(hub.url), tmp_path / "t")
    assert found.path == tmp_path / "models" / "who--what" and hub.requests == []


def test_a_name_is_not_tried_as_a_path(
    hub: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_small_llama(tmp_path / "here" / "what")
    monkeypatch.chdir(tmp_path)
    for name in ("here/what", str(tmp_path / "here" / "what"), "what"):
        with pytest.raises(RepositoryUnknown) as error:
            resolve_headers(name, tmp_path, HubAccess(hub.url), tmp_path / "t")
        assert error.value.status == 404


def test_a_gated_file_is_told_from_an_unknown_repository(hub: Files, tmp_path: Path) -> None:
    publish(hub, "who/what", folder_content(write_small_llama(tmp_path / "own")))
    hub.refused["/who/what/resolve/main/config.json"] = 401
    with pytest.raises(DownloadRefused) as gated:
        resolve_headers("who/what", tmp_path, HubAccess(hub.url), tmp_path / "t")
    assert gated.value.status == 401
    with pytest.raises(RepositoryUnknown) as unknown:
        resolve_headers("who/else", tmp_path, HubAccess(hub.url), tmp_path / "t")
    assert unknown.value.status == 404


def test_a_header_that_is_too_large_is_refused(hub: Files, tmp_path: Path) -> None:
    content = folder_content(write_small_llama(tmp_path / "own"))
    content["model.safetensors"] = (1 << 40).to_bytes(8, "little") + bytes(64)
    publish(hub, "who/what", content)
    with pytest.raises(ModelError, match="too large"):
        resolve_headers("who/what", tmp_path, HubAccess(hub.url), tmp_path / "t")
