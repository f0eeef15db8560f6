"""The hash of a private copy is that of the copied bytes; paths, links, permissions, and changes
while files are read."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.adapters import private_copy, safe_open
from penstock.adapters import storage as storage_module
from penstock.adapters.errors import AdapterRefused
from penstock.adapters.private_copy import AdapterCopy, copy_adapter
from penstock.adapters.storage import AdapterStorage
from tests.support.checkpoints.lora_adapters import write_adapter

GIB = 1024**3
NAMES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "root" / "style")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


def take(source: Path | str, store: Path, root: Path | None = None, size: int = GIB) -> AdapterCopy:
    return copy_adapter(str(source), root, store, size)


def refusal(source: Path | str, store: Path, root: Path | None = None, size: int = GIB):
    before = list(store.iterdir())
    with pytest.raises(AdapterRefused) as refused:
        take(source, store, root, size)
    assert list(store.iterdir()) == before
    assert "/" not in refused.value.message
    return refused.value.status, refused.value.code


def test_copy_is_private_and_named_by_its_content(source, store):
    taken = take(source, store)
    digests = [hashlib.sha256((source / name).read_bytes()).digest() for name in NAMES]
    named = hashlib.sha256(b"penstock-lora-generation-v1\0" + b"".join(digests)).hexdigest()
    assert taken.revision == named
    assert taken.folder.stat().st_mode & 0o777 == 0o700
    for name in NAMES:
        assert (taken.folder / name).read_bytes() == (source / name).read_bytes()
        assert (taken.folder / name).stat().st_mode & 0o777 == 0o400


def test_name_follows_either_file(tmp_path, source, store):
    names = {take(source, store).revision}
    names.add(take(write_adapter(tmp_path / "b", seed=1), store).revision)
    names.add(take(write_adapter(tmp_path / "c", config={"lora_alpha": 9}), store).revision)
    assert len(names) == 3
    assert take(write_adapter(tmp_path / "d"), store).revision in names


def test_relative_path_starts_at_the_root(source, store, monkeypatch):
    assert take("style", store, source.parent) and take("./x/../style", store, source.parent)
    monkeypatch.chdir(source.parent)
    assert take("style", store).revision == take(source, store).revision


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("", 400, "invalid_adapter_path"),
        ("  ", 400, "invalid_adapter_path"),
        ("a\0b", 400, "invalid_adapter_path"),
        ("a" * 5000, 400, "invalid_adapter_path"),
        ("a" * 300, 400, "invalid_adapter_path"),  # longer than the limit of a name
        ("nothing", 404, "adapter_path_not_found"),
        ("style/adapter_config.json", 400, "invalid_adapter_path"),
        ("style/adapter_config.json/x", 404, "adapter_path_not_found"),
        ("circle", 400, "invalid_adapter_path"),
        ("..", 403, "adapter_path_forbidden"),
        ("../root2", 403, "adapter_path_forbidden"),
        ("../nothing", 403, "adapter_path_forbidden"),
        ("/", 403, "adapter_path_forbidden"),
        ("/nothing/at/all", 403, "adapter_path_forbidden"),
        ("outside", 403, "adapter_path_forbidden"),
        ("style/../../root2", 403, "adapter_path_forbidden"),
    ],
)
def test_path_is_refused(source, store, tmp_path, text, status, code):
    root = source.parent
    other = write_adapter(tmp_path / "root2")
    (root / "outside").symlink_to(other)
    (root / "circle").symlink_to("circle")
    assert refusal(text, store, root) == (status, code)


def test_links_within_the_root_are_followed(source, store):
    root = source.parent
    (root / "link").symlink_to("style")
    blobs = root / "blobs"
    blobs.mkdir()
    kept = root / "kept"
    kept.mkdir()
    for name in NAMES:
        (blobs / name).write_bytes((source / name).read_bytes())
        (kept / name).symlink_to(f"../blobs/{name}")
    revisions = {take(name, store, root).revision for name in ("style", "link", "kept")}
    assert len(revisions) == 1


def test_root_may_itself_be_a_link(source, store, tmp_path):
    (tmp_path / "alias").symlink_to(source.parent)
    assert take("style", store, tmp_path / "alias")
    assert take(source, store, tmp_path / "alias")


@pytest.mark.parametrize("name", NAMES)
def test_file_is_refused(source, store, tmp_path, name):
    root, file = source.parent, source / name
    secret = tmp_path / name
    secret.write_bytes(file.read_bytes())
    file.unlink()
    assert refusal(source, store, root) == (404, "adapter_file_not_found")
    file.symlink_to(secret)
    assert refusal(source, store, root) == (403, "adapter_file_forbidden")
    assert take(source, store)
    file.unlink()
    file.symlink_to(name)
    assert refusal(source, store, root)[1] == "invalid_adapter_file"
    file.unlink()
    file.mkdir()
    assert refusal(source, store, root) == (400, "invalid_adapter_file")
    file.rmdir()
    os.mkfifo(file)
    assert refusal(source, store, root) == (400, "invalid_adapter_file")


def test_pickled_weights_are_ignored(source, store):
    (source / NAMES[1]).rename(source / "adapter_model.bin")
    assert refusal(source, store) == (404, "adapter_file_not_found")


@pytest.fixture
def unprivileged_user(tmp_path: Path) -> Iterator[None]:
    """Drop the rights of root if the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    for folder in tmp_path.parents:  # pytest's own folders are closed to other users
        if folder.stat().st_mode & 0o005 != 0o005:
            os.chmod(folder, 0o755)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chmod(path, 0o777 if path.is_dir() else 0o666)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_are_opened_with_the_servers_permissions(source, store, unprivileged_user):
    folder, file = source.parent, source / NAMES[1]
    for closed, code in ((file, "adapter_file_forbidden"), (source, "adapter_file_forbidden")):
        mode = _mode(closed, 0)
        assert refusal(source, store) == (403, code)
        _mode(closed, mode)
    mode = _mode(folder, 0)
    assert refusal(source, store) == (403, "adapter_path_forbidden")
    _mode(folder, mode)


def _mode(path: Path, mode: int) -> int:
    """Set the mode as the owner, and return the previous one."""
    user = os.geteuid()
    if user == 65534:
        os.seteuid(0)
    before = path.stat().st_mode
    path.chmod(mode)
    os.seteuid(user)
    return before


def test_file_that_is_too_large_is_not_read(source, store, monkeypatch):
    monkeypatch.setattr(private_copy, "WEIGHT_SLACK_BYTES", 0)
    size = (source / NAMES[1]).stat().st_size
    assert take(source, store, size=size // 8 + 1)
    assert refusal(source, store, size=size // 8 - 1) == (413, "lora_adapter_file_too_large")
    os.truncate(source / NAMES[0], 2**20 + 1)
    assert refusal(source, store) == (413, "lora_adapter_file_too_large")


def test_wrong_config_is_refused_before_the_weights_are_copied(tmp_path, store):
    folder = write_adapter(tmp_path / "a", config={"use_dora": True})
    assert refusal(folder, store) == (422, "invalid_lora_adapter")


def grow(folder: Path) -> None:
    with (folder / NAMES[1]).open("ab") as file:
        file.write(b"x")


def shrink(folder: Path) -> None:
    os.truncate(folder / NAMES[1], 100)


def rewrite(folder: Path) -> None:
    data = (folder / NAMES[0]).read_bytes()
    (folder / NAMES[0]).write_bytes(data[::-1])
    os.utime(folder / NAMES[0], ns=(1, 1))


def swap(folder: Path) -> None:
    (folder / "new").write_bytes((folder / NAMES[0]).read_bytes())
    (folder / "new").rename(folder / NAMES[0])


def remove(folder: Path) -> None:
    (folder / NAMES[0]).unlink()


@pytest.mark.parametrize("change", [grow, shrink, rewrite, swap, remove])
@pytest.mark.parametrize("at", [1, 3])
def test_file_that_changes_while_it_is_read(source, store, monkeypatch, change, at):
    """`at`: change it before the config is read, or in the middle of the weights."""
    read, calls = private_copy._read, []

    def changing(file):
        calls.append(file)
        if len(calls) == at + 1:
            change(source)
        return read(file)

    monkeypatch.setattr(private_copy, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(private_copy, "_read", changing)
    assert refusal(source, store) == (409, "adapter_file_changed")


def test_folder_that_becomes_a_link_while_it_is_opened(source, store, tmp_path, monkeypatch):
    other = write_adapter(tmp_path / "other", seed=5)
    resolve = os.path.realpath

    def swapped(path):
        found = resolve(path)
        if Path(path).name == NAMES[0]:
            source.rename(source.with_name("moved"))
            source.symlink_to(other)
        return found

    monkeypatch.setattr(safe_open.os.path, "realpath", swapped)
    assert refusal(source, store, source.parent) == (409, "adapter_file_changed")


def test_full_disk_is_a_server_error(source, store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_copy.os, "write", full)
    assert refusal(source, store) == (503, "lora_storage_unavailable")


def test_storage_keeps_one_copy_of_the_same_content(tmp_path, source):
    storage = AdapterStorage(tmp_path / "home")
    first = storage.keep(take(source, storage.folder))
    again = take(source, storage.folder)
    assert storage.keep(again) == first == storage.folder_of(again.revision)
    assert not again.folder.exists() and (first / NAMES[0]).exists()
    storage.drop(again.revision)
    storage.drop(again.revision)
    assert [path.name for path in storage.folder.iterdir()] == ["lock"]
    storage.close()
    assert list((tmp_path / "home" / "adapters").iterdir()) == []


def test_storage_that_cannot_keep_a_copy_leaves_none(tmp_path, source, monkeypatch):
    storage = AdapterStorage(tmp_path / "home")
    copy = take(source, storage.folder)

    def full(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(AdapterRefused) as refused:
        storage.keep(copy)
    assert refused.value.code == "lora_storage_unavailable"
    assert [path.name for path in storage.folder.iterdir()] == ["lock"]
    storage.close()


def test_storage_deletes_only_folders_of_dead_processes(tmp_path, source):
    home = tmp_path / "home"
    living = AdapterStorage(home)
    living.keep(take(source, living.folder))
    left = home / "adapters" / "run-dead"
    left.mkdir()
    (left / "lock").touch()
    (home / "adapters" / "notes").touch()
    second = AdapterStorage(home)
    found = {path.name for path in (home / "adapters").iterdir()}
    assert found == {living.folder.name, second.folder.name, "notes"}
    assert any(living.folder.glob("*/adapter_config.json"))


def test_unwritable_home_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AdapterRefused) as refused:
        AdapterStorage(tmp_path / "file")
    assert refused.value.code == "lora_storage_unavailable"


def test_home_whose_folder_cannot_be_locked_is_refused_and_left_unchanged(tmp_path, monkeypatch):
    def unlocked(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(storage_module.fcntl, "flock", unlocked)
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(AdapterRefused) as refused:
        AdapterStorage(tmp_path / "home")
    assert refused.value.code == "lora_storage_unavailable"
    assert list((tmp_path / "home" / "adapters").iterdir()) == []
    assert os.listdir("/proc/self/fd") == open_before
