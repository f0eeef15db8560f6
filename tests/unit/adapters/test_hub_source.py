"""An adapter named by its hub id is downloaded once, checked, and loaded like a folder, or refused
with an error that says where it was looked for."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.hub_source import find_adapter
from penstock.adapters.registry import LoadedAdapter
from penstock.base.errors import ModelError
from penstock.config import LoraSettings, LoraSource
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.models.hub.hub_access import HubAccess
from tests.support.checkpoints.lora_adapters import write_adapter
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.file_server import Files, publish, serving

NAMES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture
def hub() -> Iterator[Files]:
    with serving(Files()) as files:
        yield files


@pytest.fixture
def content(tmp_path: Path) -> dict[str, bytes]:
    """Return the files of an adapter's repository."""
    folder = write_adapter(tmp_path / "written")
    files = {name: (folder / name).read_bytes() for name in NAMES}
    shutil.rmtree(folder)
    return {**files, "README.md": b"a card", "adapter_model.bin": b"a pickle"}


def preload(home: Path, hub: HubAccess, source: str) -> tuple[LoadedAdapter, ...]:
    """Return the adapters of a catalog after it has preloaded `source`."""

    async def run() -> tuple[LoadedAdapter, ...]:
        lora = LoraSettings(preload=(LoraSource("style", source),))
        catalog = AdapterCatalog(lora, home, hub=hub)
        catalog.attach(ScriptedEngine([1]))
        try:
            await catalog.preload()
            return catalog.adapters
        finally:
            await catalog.close()

    return asyncio.run(run())


def test_hub_adapter_is_downloaded_once_and_found_again_offline(
    hub: Files, tmp_path: Path, content: dict[str, bytes]
) -> None:
    publish(hub, "who/style", content)
    (adapter,) = preload(tmp_path, HubAccess(hub.url, token="secret"), "who/style")
    assert (adapter.alias, adapter.source) == ("style", "who/style")
    asked = [path.rpartition("/")[2] for path, _ in hub.requests]
    assert sorted(asked) == sorted(["main", *NAMES])
    assert set(hub.authorizations) == {"Bearer secret"}
    hub.requests.clear()
    assert preload(tmp_path, HubAccess(hub.url, offline=True), "who/style") == (adapter,)
    assert hub.requests == []


def test_hub_adapter_has_the_revision_of_the_same_files_in_a_folder(
    hub: Files, tmp_path: Path, content: dict[str, bytes]
) -> None:
    publish(hub, "who/style", content)
    (fetched,) = preload(tmp_path / "home", HubAccess(hub.url), "who/style")
    (local,) = preload(tmp_path / "home", HubAccess(offline=True), str(write_adapter(tmp_path)))
    assert fetched.revision == local.revision


def test_a_folder_comes_before_the_hub(
    tmp_path: Path, hub: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_adapter(tmp_path / "who" / "style")
    assert find_adapter("who/style", tmp_path, HubAccess(hub.url)) == "who/style"
    assert hub.requests == []


def test_a_snapshot_in_the_hubs_own_cache_is_used_when_complete(
    tmp_path: Path, hub: Files, content: dict[str, bytes]
) -> None:
    root = tmp_path / "cache" / "models--who--style"
    snapshot = root / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("abc123")
    access = HubAccess(hub.url, cache=tmp_path / "cache")
    (snapshot / NAMES[0]).write_bytes(content[NAMES[0]])
    with pytest.raises(AdapterRefused, match="HTTP 404"):
        find_adapter("who/style", tmp_path, access)
    blob = tmp_path / "blob"  # the layout of the hub's clients
    blob.write_bytes(content[NAMES[1]])
    (snapshot / NAMES[1]).symlink_to(blob)
    assert find_adapter("who/style", tmp_path, access) == str(snapshot)
    assert len(preload(tmp_path, access, "who/style")) == 1


@pytest.mark.parametrize("spoiled", NAMES)
def test_content_with_a_wrong_hash_is_refused(
    hub: Files, tmp_path: Path, content: dict[str, bytes], spoiled: str
) -> None:
    publish(hub, "who/style", content)
    hub.add(f"/who/style/resolve/main/{spoiled}", b"x" * len(content[spoiled]))
    with pytest.raises(ModelError, match=f"lora style: .*{spoiled}: the sha.* is wrong"):
        preload(tmp_path, HubAccess(hub.url), "who/style")


@pytest.mark.parametrize("missing", NAMES)
def test_a_repository_without_one_of_the_files_is_refused(
    hub: Files, tmp_path: Path, content: dict[str, bytes], missing: str
) -> None:
    publish(hub, "who/style", {name: data for name, data in content.items() if name != missing})
    with pytest.raises(ModelError, match=f"who/style: {missing} not found at main"):
        preload(tmp_path, HubAccess(hub.url), "who/style")


def test_downloaded_adapter_is_checked_like_a_folder(hub: Files, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "written", config={"use_dora": True})
    publish(hub, "who/style", {name: (folder / name).read_bytes() for name in NAMES})
    with pytest.raises(ModelError, match=r"lora style: .*DoRA"):
        preload(tmp_path, HubAccess(hub.url), "who/style")


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with serving(Files()) as gone:
        url = gone.url
    with pytest.raises(ModelError, match=f"who/style is not a folder.* {url} does not answer"):
        preload(tmp_path, HubAccess(url), "who/style")


@pytest.mark.parametrize("source", ["nothing", "a/b/c", "a/..", "../a", "/x/y", ""])
def test_a_source_that_is_neither_a_folder_nor_an_id_sends_no_request(
    hub: Files, tmp_path: Path, source: str
) -> None:
    with pytest.raises(AdapterRefused):
        find_adapter(source or " ", tmp_path, HubAccess(hub.url))
    assert hub.requests == []


def test_a_client_cannot_start_a_download(
    hub: Files, tmp_path: Path, content: dict[str, bytes]
) -> None:
    publish(hub, "who/style", content)

    async def load() -> None:
        catalog = AdapterCatalog(LoraSettings(), tmp_path, root=tmp_path, hub=HubAccess(hub.url))
        catalog.attach(ScriptedEngine([1]))
        try:
            await catalog.load(AdapterLoadRequest("style", "who/style"))
        finally:
            await catalog.close()

    with pytest.raises(AdapterRefused) as refused:
        asyncio.run(load())
    assert refused.value.code == "adapter_path_not_found"
    assert hub.requests == []


@pytest.mark.parametrize("source", ["~no-such-user/style", "x" * 5000, f"{'a' * 300}/style"])
def test_invalid_path_is_not_found(source: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused) as refused:
        find_adapter(source, tmp_path, HubAccess(offline=True))
    assert refused.value.code == "adapter_path_not_found"
    assert len(refused.value.message) < 400
